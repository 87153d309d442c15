"""Choose the pictures of a run: of each task, and of its answers as the run folder has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serve_eval.report.pictures.boxes import draw_lengths
from serve_eval.report.pictures.change import draw_change
from serve_eval.report.pictures.classic import draw_test
from serve_eval.report.pictures.distribution import draw_distribution
from serve_eval.report.pictures.order import draw_order
from serve_eval.report.pictures.picture import Picture
from serve_eval.report.samples.drawn_answers import DrawnAnswer
from serve_eval.schema import TaskReport

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
