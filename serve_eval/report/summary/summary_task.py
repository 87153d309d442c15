"""Hold the facts about a task that a summary shows, for a run and for a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serve_eval.plan.again import write_resume_command
from serve_eval.schema import (
    Acceptance,
    Report,
    TaskReport,
    TaskResult,
    Verdict,
    WrongExample,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTask:
    """A result with its verdict.

    `before` is the breakdown of the same prompts by the reference, empty if not known. `names` are
    those of the value and of the reference. `default_rule` judges if nothing else is chosen
    (None: any may). `resume` is the command that resumes the run.
    """

    result: TaskResult
    verdict: Verdict
    before: Mapping[str, object] = field(default_factory=dict)
    acceptance: Acceptance | None = None
    example: WrongExample | None = None
    names: tuple[str, str] = ("", "reference")
    default_rule: str | None = None
    resume: str = ""


def summarise_tasks(report: Report, out_dir: Path) -> list[SummaryTask]:
    """Return what the summary needs of each task of the run in a folder."""
    resume = write_resume_command(out_dir, report.plan)
    return [summarise_task(task, resume) for task in report.tasks]


def summarise_task(task: TaskReport, resume: str = "") -> SummaryTask:
    """Return what the summary needs of a task of a run."""
    return SummaryTask(
        result=task.result,
        verdict=task.verdict,
        before=task.reference_breakdown,
        acceptance=task.traffic.acceptance,
        example=task.example,
        resume=resume,
    )
