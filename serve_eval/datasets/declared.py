"""Find the data sets: the shared ones of known.py, and those that task files declare.

A task file `serve_eval/tasks/NAME.py` with `SOURCE = Source(...)` at its top level declares the
data set NAME. A file whose SOURCE is one of known.py declares nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

from serve_eval.datasets.known import KNOWN
from serve_eval.datasets.source import Source
from serve_eval.plugins import registry

TASKS = "serve_eval.tasks"
_DECLARES = re.compile(r"^SOURCE\b[^=\n]*=\s*Source\(", re.MULTILINE)
"""The line that a file must have to be imported, since most tasks take long to import."""


def find_sources() -> dict[str, Source]:
    """Return every data set by its name for `serve-eval data`, the shared ones first.

    Raises ValueError if a task file declares a set under the name of a shared one.
    """
    declared = {
        name: found
        for name in registry.list_shipped(TASKS)
        if (found := _read_source(f"{TASKS}.{name}")) is not None
    }
    if taken := sorted(declared.keys() & KNOWN.keys()):
        raise ValueError(
            f"serve_eval/tasks/{taken[0]}.py: SOURCE has the name of a set of"
            f" serve_eval/datasets/known.py; write SOURCE = KNOWN[{taken[0]!r}]"
        )
    return {**KNOWN, **declared}


def _read_source(module: str) -> Source | None:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    if not _DECLARES.search(Path(spec.origin).read_text("utf-8")):
        return None
    found = getattr(importlib.import_module(module), "SOURCE", None)
    return found if isinstance(found, Source) else None
