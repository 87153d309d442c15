"""Choose the prompts that a page shows of many, so that each kind of outcome has a share. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from serve_eval.report.samples.sample_index import CATEGORIES, CUT, Keys, RowTable
from serve_eval.report.samples.samples import FAILED, RIGHT, UNSCORED

T = TypeVar("T", bound=np.generic)
LEAST_SHARE = 10
"""Each group has a tenth of the places, or less if there are more groups."""
SAME, FELL, ROSE = 1, 2, 3
"""Codes of the change of a score; 0: it is not known on both sides."""
WRONG, MISSING = "wrong", "missing"
SIDES = (RIGHT, WRONG, MISSING)
"""The states that the first answer of an arm can have."""
_FLIP_RANK = np.array([3, 2, 0, 1])
"""The place of each change in the order in which changes are shown."""
_SIDE_OF = np.array(
    [
        SIDES.index(
            MISSING if name in (FAILED, UNSCORED) else RIGHT if name in (CUT, RIGHT) else WRONG
        )
        for name in CATEGORIES
    ],
    dtype=np.int8,
)


@dataclass(frozen=True, slots=True, eq=False)
class TaskRows:
    """The prompts of a task: keys, numbers that draw them by chance, and the rank of their group.

    `sides` counts the prompts by the first answers of the first and of the last arm. `answers` are
    the most that an arm has.
    """

    keys: Keys
    order: NDArray[np.uint32]
    group: NDArray[np.integer]
    sides: Mapping[tuple[str, str], int]
    answers: int


def join_arms(first: RowTable, last: RowTable, answers: int) -> TaskRows:
    """Return the prompts of two arms, what changed first, or those of one arm given twice."""
    if first is last:
        return _as_one_arm(first, answers)
    keys = np.union1d(first.keys, last.keys)
    a, b = (_spread(keys, one, _SIDE_OF[one.first], SIDES.index(MISSING)) for one in (first, last))
    pairs = np.bincount(len(SIDES) * a + b, minlength=len(SIDES) ** 2)
    values = [_spread(keys, one, one.value, np.nan) for one in (first, last)]
    flips = _FLIP_RANK[compare_values(*values)]
    group = (flips * len(SIDES) + a) * len(SIDES) + b
    order = _spread(keys, first, first.order, 0)
    return TaskRows(
        keys=keys,
        order=np.where(np.isin(keys, first.keys), order, _spread(keys, last, last.order, 0)),
        group=group,
        sides={
            (left, right): int(pairs[len(SIDES) * i + j])
            for i, left in enumerate(SIDES)
            for j, right in enumerate(SIDES)
        },
        answers=answers,
    )


def _as_one_arm(table: RowTable, answers: int) -> TaskRows:
    """Return the prompts of one arm, without columns of their own: there may be a million."""
    sides = dict.fromkeys(((left, right) for left in SIDES for right in SIDES), 0)
    for category, side in enumerate(SIDES[place] for place in _SIDE_OF.tolist()):
        sides[side, side] += int(np.count_nonzero(table.first == category))
    return TaskRows(
        keys=table.keys, order=table.order, group=table.category, sides=sides, answers=answers
    )


def compare_values(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the code of the change of each score from `a` to `b`; NaN is a missing score."""
    known = ~(np.isnan(a) | np.isnan(b))
    return np.where(known, np.where(a == b, SAME, np.where(b < a, FELL, ROSE)), 0)


def choose_rows(tasks: Sequence[TaskRows], most: int) -> list[Keys | None]:
    """Return the keys of the prompts to show of each task; None: all of them.

    At most `most` answers of an arm are shown. The tasks share the places evenly. In a task, each
    group has a tenth of the places, and those of the lowest rank have what is left over; within a
    group, chance decides.
    """
    if sum(task.answers for task in tasks) <= most:
        return [None] * len(tasks)
    places = share_evenly([task.answers for task in tasks], most)
    return [
        None
        if answers >= task.answers
        else _choose(task, answers * len(task.keys) // max(1, task.answers))
        for task, answers in zip(tasks, places, strict=True)
    ]


def share_evenly(wanted: Sequence[int], most: int) -> list[int]:
    """Return a share of `most` for each, at most what is wanted, as even as that allows."""
    shares, left = [0] * len(wanted), most
    for done, i in enumerate(sorted(range(len(wanted)), key=lambda i: wanted[i])):
        shares[i] = min(wanted[i], left // (len(wanted) - done))
        left -= shares[i]
    return shares


def _choose(task: TaskRows, most: int) -> Keys:
    present, counts = np.unique(task.group, return_counts=True)
    least = most // max(LEAST_SHARE, len(present))
    taken = np.minimum(counts, least)
    for i in range(len(present)):
        taken[i] += min(counts[i] - taken[i], most - taken.sum())
    chosen = []
    for group, n in zip(present, taken, strict=True):
        places = np.flatnonzero(task.group == group)
        chosen.append(places[np.argsort(task.order[places], kind="stable")[:n]])
    return task.keys[np.concatenate(chosen)] if chosen else task.keys[:0]


def _spread(keys: Keys, table: RowTable, column: NDArray[T], missing: float) -> NDArray[T]:
    """Return a column of a table for all of `keys`, with a value for those it lacks."""
    spread = np.full(len(keys), missing, dtype=column.dtype)
    spread[np.searchsorted(keys, table.keys)] = column
    return spread
