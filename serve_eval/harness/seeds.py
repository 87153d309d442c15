"""Give lm-eval's tasks the random numbers of a run of one task on a fresh machine.

lm-eval seeds the generators of Python, numpy and torch at the beginning of a run; then it imports
the code of its tasks and maps their data. A task draws different numbers if the process drew
before, if a generator of its own module was used before, or if the cache of Hugging Face's datasets
holds draws of an earlier run. Loading a task here is not affected by any of these, and affects
nothing later.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

RANDOM, OTHERS = 0, 1234
"""lm-eval's seeds for Python's generator, and for those of numpy and torch, unless its command line
names others."""
ALONE = threading.RLock()
"""The lock for generators, imported modules, loggers and the classes of datasets, which the whole
process shares."""


@contextmanager
def as_in_a_run() -> Iterator[None]:
    """Import, load and build one task in this block as in a new process with an empty cache."""
    import numpy

    with ALONE, _generators_kept(), _tasks_unknown(), _maps_uncached():
        random.seed(RANDOM)
        numpy.random.seed(OTHERS)
        seed_torch()
        yield


def seed_torch() -> None:
    """Seed torch if it is imported.

    Call it again when the code of a task may have imported torch.
    """
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(OTHERS)


@contextmanager
def of_document(name: str) -> Iterator[None]:
    """Make the draws of this block depend on the name only.

    lm-eval draws in its order of scoring, but answers that arrive one by one have no such order.
    """
    import numpy

    with ALONE, _generators_kept():
        random.seed(f"{RANDOM}:{name}")
        numpy.random.seed(random.getrandbits(32))
        if (torch := sys.modules.get("torch")) is not None:
            torch.manual_seed(random.getrandbits(32))
        yield


@contextmanager
def _generators_kept() -> Iterator[None]:
    import numpy

    python, numbers = random.getstate(), numpy.random.get_state()
    torch = sys.modules.get("torch")
    tensors = None if torch is None else torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(numbers)
        if torch is not None:
            torch.set_rng_state(tensors)


@contextmanager
def _tasks_unknown() -> Iterator[None]:
    """Import the modules of tasks again in this block.

    Some have their own generator, others seed the global one. lm-eval refuses to register a name
    twice, so what they registered is removed and put back afterwards.
    """
    from lm_eval.api import registry

    known = {
        name: module for name, module in list(sys.modules.items()) if _is_of_a_task(name, module)
    }
    every = {id(one): getattr(one, "_objs", None) for one in vars(registry).values()}
    offers = [offer for offer in every.values() if isinstance(offer, dict)]
    theirs = [
        {name: thing for name, thing in offer.items() if _module_of(thing) in known}
        for offer in offers
    ]
    for names, place in ((known, sys.modules), *zip(theirs, offers, strict=True)):
        for name in names:
            del place[name]
    try:
        yield
    finally:
        sys.modules.update(known)
        for offer, own in zip(offers, theirs, strict=True):
            offer.update(own)


def _is_of_a_task(name: str, module: Any) -> bool:
    """Return True for a module that lm-eval imports for a task's file, not for its own modules."""
    import lm_eval.tasks

    folder, file = lm_eval.tasks.__file__, getattr(module, "__file__", None)
    assert folder is not None
    its_own = file is not None and Path(file).parent == Path(folder).parent
    return hasattr(module, "__mtime__") or (name.startswith("lm_eval.tasks.") and not its_own)


def _module_of(thing: Any) -> str | None:
    name = getattr(thing, "__module__", None)
    return name if isinstance(name, str) else None


@contextmanager
def _maps_uncached() -> Iterator[None]:
    """Keep the results of maps in a folder that is deleted after the block.

    A second map of the same data gives the same result there, as in lm-eval; without a cache it
    would draw again. Open files stay readable after the folder is deleted.
    """
    from datasets import Dataset

    usual = Dataset._get_cache_file_path
    with TemporaryDirectory(prefix="serve-eval-maps-") as folder:

        def here(dataset: Any, fingerprint: str) -> str:
            return str(Path(folder, Path(usual(dataset, fingerprint)).name))

        Dataset._get_cache_file_path = here
        try:
            yield
        finally:
            Dataset._get_cache_file_path = usual
