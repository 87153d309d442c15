"""Read the scores of finished runs as BioChatter's rows: one for each model, task and case."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET

from serve_eval import __version__
from serve_eval.report.samples.known import prepare_again
from serve_eval.report.spreadsheet import disarm
from serve_eval.report.summary import name_expected
from serve_eval.schema import HOLDOUT, Outcome, Report, Sample, TaskReport
from serve_eval.storage.records.scores import ScoreRecord, score_records

CONFIDENCE = "confidence"
"""The part of a score that holds the confidence which an answer states, if its scorer reads it."""
HIDDEN = "(of a hold-out set)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRow:
    """The scores of one case of a task by one model, one for each iteration that has a score.

    `md5` is BioChatter's key of a case; for a sample that is no case, it is the MD5 of its id.
    """

    model: str
    task: str
    subtask: str
    md5: str
    date: str
    scores: tuple[float, ...]
    records: tuple[ScoreRecord, ...] = ()
    hidden: bool = False

    @property
    def score(self) -> str:
        """The scores as BioChatter writes them: "1.0;0.5/1"."""
        return f"{';'.join(f'{one:.10g}' for one in self.scores)}/1"

    def list_cells(self) -> list[str]:
        """Return the row of the result file."""
        iterations = str(len(self.scores))
        return [
            self.model,
            self.subtask,
            self.score,
            iterations,
            self.md5,
            self.date,
            f"serve-eval {__version__}",
        ]

    def list_failures(self) -> Iterator[list[str]]:
        """Yield a row for each iteration that is not right, not for the last one alone."""
        for record in self.records:
            if record.outcome is Outcome.CORRECT:
                continue
            mode = record.outcome.value if record.mode is UNSET else str(record.mode)
            expected = HIDDEN if self.hidden else disarm(name_expected(self.task, record.target))
            actual = HIDDEN if self.hidden else disarm(record.answer or "")
            yield [self.model, self.subtask, actual, expected, mode, self.md5, self.date]

    def list_confidences(self) -> list[str] | None:
        """Return the stated confidences of right and of wrong answers, or None without one."""
        right: list[str] = []
        wrong: list[str] = []
        for record in self.records:
            if CONFIDENCE in record.parts:
                side = right if record.outcome is Outcome.CORRECT else wrong
                side.append(f"{record.parts[CONFIDENCE]:.10g}")
        if not right and not wrong:
            return None
        return [self.model, self.subtask, ";".join(right), ";".join(wrong), self.md5, self.date]


def read_rows(
    run: Path, report: Report, task: TaskReport, model: str, include_path: Sequence[str]
) -> tuple[list[CaseRow], int]:
    """Return the rows of a task of a run, and how many answers have no score.

    `model` is the name under which they stand.
    Raises ServeEvalError if the task's data is not on this machine or its scores cannot be read.
    """
    samples = {
        sample.id: sample
        for sample in prepare_again(report.plan, task.spec, include_path).dataset.samples
    }
    by_sample: dict[str, list[ScoreRecord]] = defaultdict(list)
    for record in score_records(run, task.result.task, unfinished=True):
        by_sample[_strip_repeat(record.id, samples)].append(record)
    lo, hi = task.result.metric.lo or 0.0, task.result.metric.hi or 1.0
    rows = []
    for name, records in by_sample.items():
        sample = samples.get(name)
        metadata = {} if sample is None else sample.metadata
        rows.append(
            CaseRow(
                model=model,
                task=task.result.task,
                subtask=metadata.get("case", name),
                md5=metadata.get("compat_md5") or _digest(name),
                date=report.started_at[:19].replace("T", " "),
                scores=tuple((one.value - lo) / (hi - lo) for one in records),
                records=tuple(records),
                hidden=HOLDOUT in metadata,
            )
        )
    rows.sort(key=lambda row: (row.model, row.subtask, row.md5))
    return rows, task.result.planned - sum(len(row.scores) for row in rows)


def _strip_repeat(name: str, samples: Mapping[str, Sample]) -> str:
    """Return the id of the sample that a repeat asks again."""
    head, mark, number = name.rpartition("#")
    return head if mark and number.isdigit() and name not in samples else name


def _digest(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
