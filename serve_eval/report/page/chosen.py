"""Choose the prompts that a page shows of many, and the pictures of a run or a comparison.

Each kind of outcome has a share of the prompts. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from serve_eval.report.pictures.distribution import draw_distribution, draw_lengths, draw_test
from serve_eval.report.pictures.outcomes import draw_order
from serve_eval.report.pictures.picture import Picture
from serve_eval.report.pictures.points import ScatterPoint, draw_against, draw_change
from serve_eval.report.samples.sample_index import CATEGORIES, CUT, DrawnAnswer, Keys, RowTable
from serve_eval.report.samples.samples import FAILED, RIGHT, UNSCORED
from serve_eval.schema import TaskReport

if TYPE_CHECKING:
    from serve_eval.schema import ComparedTask

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


LEAST_ANSWERS = 20
"""Answers from which on their distributions and their order are drawn."""
TIMES = {
    "latency": "latency_s",
    "time to the first token": "ttft_s",
    "time per token after it": "tpot_s",
}


def draw_task(task: TaskReport) -> Iterator[Picture]:
    """Yield the pictures of a task's test and change; the page has the breakdown as tables."""
    result, verdict = task.result, task.verdict
    drawn = [draw_test(result, verdict)]
    if verdict.paired is not None:
        drawn.append(draw_change(result.task, verdict.paired, result.metric))
    yield from (one for one in drawn if one is not None)


def draw_answers(
    task: TaskReport, answers: Sequence[DrawnAnswer], requests: int
) -> Iterator[Picture]:
    """Yield the pictures of the answers of a task: their order, times and lengths.

    The answers are in the order of their starts, all `requests` or some of them by chance.
    """
    if len(answers) < LEAST_ANSWERS:
        return
    name = task.result.task
    outcomes = [one.outcome for one in answers]
    drawn = [draw_order(name, outcomes, task.degradations, requests)]
    for words, field in TIMES.items():
        known = [value for one in answers if (value := getattr(one, field)) is not None]
        drawn.append(draw_distribution(f"{name}: {words}", {"this run": known}, "s"))
    counted = any(one.tokens for one in answers)
    lengths = [
        (one.outcome, one.tokens if counted else one.characters)
        for one in answers
        if one.outcome is not None
    ]
    drawn.append(draw_lengths(name, lengths, "tokens" if counted else "characters"))
    yield from (one for one in drawn if one is not None)


NAMES_OF_SIDES = ("A", "B")


def draw_compared(task: ComparedTask) -> Iterator[Picture]:
    """Yield the change on the same prompts, and A against B by each field of the breakdown."""
    if task.verdict.paired is not None:
        change = draw_change(task.task, task.verdict.paired, task.b.metric)
        yield from (change,) if change is not None else ()
    for field, table in task.a.breakdown.items():
        points = list(match_slices(table, task.b.breakdown.get(field)))
        drawn = draw_against(f"{task.task}: A against B by {field}", points, NAMES_OF_SIDES)
        if len(points) > 1 and drawn is not None:
            yield drawn


def draw_graded(
    task: ComparedTask, a: Mapping[str, float], b: Mapping[str, float]
) -> Iterator[Picture]:
    """Yield A against B by sample, from the scores by id, if there are any."""
    points = [ScatterPoint(name=id_, x=a[id_], y=b[id_]) for id_ in a if id_ in b]
    drawn = draw_against(f"{task.task}: A against B by sample", points, NAMES_OF_SIDES, named=False)
    if drawn is not None:
        yield drawn


def draw_times(task: str, a: Sequence[DrawnAnswer], b: Sequence[DrawnAnswer]) -> Iterator[Picture]:
    """Yield the times of both sides."""
    if min(len(a), len(b)) < LEAST_ANSWERS:
        return
    for words, field in TIMES.items():
        known = {
            side: [value for one in answers if (value := getattr(one, field)) is not None]
            for side, answers in zip(NAMES_OF_SIDES, (a, b), strict=True)
        }
        drawn = draw_distribution(f"{task}: {words}", known, "s")
        if all(known.values()) and drawn is not None:
            yield drawn


def match_slices(a: object, b: object) -> Iterator[ScatterPoint]:
    """Yield a point for each slice of a breakdown with a value on both sides."""
    left, right = (dict(one) if isinstance(one, dict) else {} for one in (a, b))
    for name, entry in left.items():
        x, y = _value(entry), _value(right.get(name))
        if x is not None and y is not None:
            yield ScatterPoint(name=str(name), x=x, y=y, n=int(_value(entry, "scored") or 1))


def _value(entry: object, key: str = "value") -> float | None:
    found = entry.get(key) if isinstance(entry, dict) else None
    return float(found) if isinstance(found, int | float) else None
