"""The seed of the random order of a run, drawn for the run and kept in its folder as order.json.

A false alarm that depends on the order is as rare as promised only over orders: in one order for
every night, what alarms by chance in one night alarms in the next one too. An order that is drawn
again while a run goes on would be another chance. So every run draws a seed before its first
answer, and keeps it.

Older folders took the seed of the plan, and drew one, `early_stop_seed`, only for tasks that may
stop early. What they hold is resumed and judged in the order in which it was asked.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage.file_names import ORDER_FILE
from serve_eval.evaluation.storage.private_files import pretty_json, write_private
from serve_eval.evaluation.storage.run_folder import has_answers
from serve_eval.schema import Plan

_SEED, _OLD_EARLY_SEED = "order_seed", "early_stop_seed"


@dataclass(frozen=True, slots=True)
class OrderSeeds:
    """The seeds of a run's random orders: of its samples, and of the samples of a task that may
    stop early.

    They differ in folders of older versions only. `early_stop` is None where none was drawn.
    """

    samples: int
    early_stop: int | None


def read_seeds(folder: Path, plan: Plan) -> OrderSeeds:
    """Read the seeds of a run folder. Raises RunFolderError for a damaged file."""
    stored = _read_stored(folder / ORDER_FILE)
    if (seed := stored.get(_SEED)) is not None:
        return OrderSeeds(samples=seed, early_stop=seed)
    return OrderSeeds(samples=plan.seed, early_stop=stored.get(_OLD_EARLY_SEED))


def settle_seeds(folder: Path, plan: Plan, given: int | None) -> OrderSeeds:
    """Keep the seeds of a run that has answers; give one that has none the seed `given`, or draw
    it.

    Raises RunFolderError for a damaged file, and RunFolderError or JournalError when it cannot be
    written.
    """
    if not has_answers(folder):
        seed = _draw() if given is None else given
        _write(folder, {_SEED: seed})
        return OrderSeeds(samples=seed, early_stop=seed)
    seeds = read_seeds(folder, plan)
    if seeds.early_stop is None and plan.early_stop is not None:
        early = _draw()
        _write(folder, {_OLD_EARLY_SEED: early})
        return OrderSeeds(samples=seeds.samples, early_stop=early)
    return seeds


def settle_shared(folder: Path, plan: Plan, runs: Iterable[Path]) -> int:
    """Settle one seed for several runs of a folder, in which it is kept beside them.

    Without one it is the seed that `plan` gives, else a drawn one; where one of the `runs` has
    answers already, for which an older version asked, it is theirs: `plan.seed`. Raises
    RunFolderError and JournalError as `settled` does.
    """
    if (seed := _read_stored(folder / ORDER_FILE).get(_SEED)) is not None:
        return seed
    if any(map(has_answers, runs)):
        seed = plan.seed
    else:
        seed = _draw() if plan.limits.order_seed is None else plan.limits.order_seed
    _write(folder, {_SEED: seed})
    return seed


def not_followed(plan: Plan, seed: int) -> str | None:
    """Say that the plan gives another seed than the one that the folder's answers were asked by."""
    if plan.limits.order_seed in (None, seed):
        return None
    return (
        f"order_seed {plan.limits.order_seed} is not followed: the folder keeps the order of seed"
        f" {seed}, in which it was begun; for another order use another folder"
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
    if not stored.keys() & {_SEED, _OLD_EARLY_SEED}:
        raise RunFolderError(f"{file} holds no {_SEED}", hint="Use another folder with -o.")
    return stored


def _draw() -> int:
    return secrets.randbits(32)


def _write(folder: Path, content: dict[str, int]) -> None:
    write_private(folder / ORDER_FILE, pretty_json(content))
