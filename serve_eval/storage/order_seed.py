"""Draw and keep the seed of the random order of a run, in order.json of its folder.

The promised rate of false alarms holds over random orders. With one fixed order, a chance alarm in
one nightly run would recur every night. A new order on each resume would give an alarm a further
chance. So every run draws a seed before its first answer, and keeps it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.schema import Plan
from serve_eval.storage.file_names import ORDER_FILE
from serve_eval.storage.json_files import pretty_json, write_private
from serve_eval.storage.run_folder import has_answers

_SEED = "order_seed"
_SEVERAL = "shards_without_common_order"


@dataclass(frozen=True, slots=True)
class OrderSeeds:
    """The seed for the order of a run's samples.

    `several`: the answers come from shards whose seeds differed, so that they have no common order.
    """

    samples: int
    several: bool = False


def read_seeds(folder: Path, plan: Plan) -> OrderSeeds:
    """Read the seeds of a run folder. Raises RunFolderError for a damaged file.

    Without the file, the order is not known: the seed is that of the plan.
    """
    stored = _read_stored(folder / ORDER_FILE)
    return OrderSeeds(
        samples=stored.get(_SEED, plan.seed), several=_SEVERAL in stored or not stored
    )


def settle_seeds(folder: Path, plan: Plan, given: int | None) -> OrderSeeds:
    """Return the seeds of a run, and store new ones for a run without answers.

    A run with answers keeps its seeds. A run without answers takes `given`, or draws a seed if
    `given` is None. Raises RunFolderError for a damaged file, and RunFolderError or JournalError if
    it cannot be written.
    """
    if not has_answers(folder):
        seed = _draw() if given is None else given
        _write(folder, {_SEED: seed})
        return OrderSeeds(samples=seed)
    return read_seeds(folder, plan)


def settle_shared(folder: Path, plan: Plan) -> int:
    """Return one seed for several runs of a folder, and store it next to them.

    The order of preference is the stored seed, the seed of `plan`, and a drawn seed. Raises
    RunFolderError and JournalError as `settle_seeds` does.
    """
    if (seed := _read_stored(folder / ORDER_FILE).get(_SEED)) is not None:
        return seed
    seed = _draw() if plan.limits.order_seed is None else plan.limits.order_seed
    _write(folder, {_SEED: seed})
    return seed


def note_merged(folder: Path, seeds: Iterable[int]) -> bool:
    """Store the seed of merged shards. Return True if all shards had the same."""
    found = sorted(set(seeds))
    several = {} if len(found) == 1 else {_SEVERAL: len(found)}
    _write(folder, {_SEED: found[0], **several})
    return not several


def not_followed(plan: Plan, seed: int) -> str | None:
    """Return a note if the plan names another seed than the folder uses, else None."""
    if plan.limits.order_seed in (None, seed):
        return None
    return (
        f"order_seed {plan.limits.order_seed} is ignored: this folder was started with order seed"
        f" {seed} and keeps it; use another folder for another order"
    )


def _read_stored(file: Path) -> dict[str, int]:
    if not file.exists():
        return {}
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=dict[str, int])
    except (OSError, msgspec.MsgspecError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}", hint="Use another folder with -o."
        ) from error
    if _SEED not in stored:
        raise RunFolderError(f"{file} has no {_SEED}", hint="Use another folder with -o.")
    return stored


def _draw() -> int:
    return secrets.randbits(32)


def _write(folder: Path, content: dict[str, int]) -> None:
    write_private(folder / ORDER_FILE, pretty_json(content))
