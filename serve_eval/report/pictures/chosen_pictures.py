"""Choose the pictures of a run or of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from serve_eval.report.pictures.distribution import draw_distribution, draw_lengths, draw_test
from serve_eval.report.pictures.outcomes import draw_order
from serve_eval.report.pictures.picture import Picture
from serve_eval.report.pictures.points import ScatterPoint, draw_against, draw_change
from serve_eval.report.samples.sample_index import DrawnAnswer
from serve_eval.schema import TaskReport

if TYPE_CHECKING:
    from serve_eval.schema import ComparedTask

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


SIDES = ("A", "B")


def draw_compared(task: ComparedTask) -> Iterator[Picture]:
    """Yield the change on the same prompts, and A against B by each field of the breakdown."""
    if task.verdict.paired is not None:
        change = draw_change(task.task, task.verdict.paired, task.b.metric)
        yield from (change,) if change is not None else ()
    for field, table in task.a.breakdown.items():
        points = list(match_slices(table, task.b.breakdown.get(field)))
        drawn = draw_against(f"{task.task}: A against B by {field}", points, SIDES)
        if len(points) > 1 and drawn is not None:
            yield drawn


def draw_graded(
    task: ComparedTask, a: Mapping[str, float], b: Mapping[str, float]
) -> Iterator[Picture]:
    """Yield A against B by sample, from the scores by id, if there are any."""
    points = [ScatterPoint(name=id_, x=a[id_], y=b[id_]) for id_ in a if id_ in b]
    drawn = draw_against(f"{task.task}: A against B by sample", points, SIDES, named=False)
    if drawn is not None:
        yield drawn


def draw_times(task: str, a: Sequence[DrawnAnswer], b: Sequence[DrawnAnswer]) -> Iterator[Picture]:
    """Yield the times of both sides."""
    if min(len(a), len(b)) < LEAST_ANSWERS:
        return
    for words, field in TIMES.items():
        known = {
            side: [value for one in answers if (value := getattr(one, field)) is not None]
            for side, answers in zip(SIDES, (a, b), strict=True)
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
