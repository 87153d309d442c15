"""Choose the pictures of a run: of each task, and of its answers as the run folder has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serve_eval.evaluation.storage.file_names import samples_file
from serve_eval.evaluation.storage.journal import read
from serve_eval.evaluation.storage.records.scores import score_records
from serve_eval.report.pictures.boxes import draw_lengths
from serve_eval.report.pictures.change import draw_change
from serve_eval.report.pictures.classic import draw_test
from serve_eval.report.pictures.distribution import draw_distribution
from serve_eval.report.pictures.order import draw_order
from serve_eval.report.pictures.picture import Picture
from serve_eval.schema import TaskReport

LEAST_ANSWERS = 20
"""Answers from which on their distributions and their order are drawn."""
TIMES = {
    "latency": "latency_s",
    "time to the first token": "ttft_s",
    "time per token after it": "tpot_s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnAnswer:
    """The figures of an answer that pictures show.

    `outcome` is None for a request that failed, and for an answer without a score. `tokens` is 0
    if the server does not count them.
    """

    outcome: str | None
    started_s: float
    latency_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    tokens: int = 0
    characters: int = 0


def read_drawn(run: Path, task: str) -> list[DrawnAnswer]:
    """Return the answers of a task in the order of their starts; none without a journal.

    Raises RunFolderError for a damaged file.
    """
    file = samples_file(run, task)
    if not file.exists():
        return []
    outcomes = {one.id: one.outcome for one in score_records(run, task, unfinished=True)}
    found: dict[str, DrawnAnswer] = {}
    for record in read(file):
        response, failure = record.response, record.failure
        attempts = response.attempts if response else failure.attempts if failure else ()
        started = attempts[0].start_s if attempts else 0.0
        if response is None:
            found.setdefault(record.id, DrawnAnswer(outcome=None, started_s=started))
            continue
        found[record.id] = DrawnAnswer(
            outcome=outcomes.get(record.id),
            started_s=started,
            latency_s=response.latency_s,
            ttft_s=response.ttft_s,
            tpot_s=response.tpot_s,
            tokens=response.usage.completion_tokens,
            characters=len(response.text) + len(response.reasoning or ""),
        )
    return sorted(found.values(), key=lambda one: one.started_s)


def draw_task(task: TaskReport) -> Iterator[Picture]:
    """Yield the pictures of a task's test and change; the page has the breakdown as tables."""
    result, verdict = task.result, task.verdict
    drawn = [draw_test(result, verdict)]
    if verdict.paired is not None:
        drawn.append(draw_change(result.task, verdict.paired, result.metric))
    yield from (one for one in drawn if one is not None)


def draw_answers(task: TaskReport, answers: Sequence[DrawnAnswer]) -> Iterator[Picture]:
    """Yield the pictures of the answers of a task: their order, times and lengths."""
    if len(answers) < LEAST_ANSWERS:
        return
    name = task.result.task
    drawn = [draw_order(name, [one.outcome for one in answers], task.degradations)]
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
