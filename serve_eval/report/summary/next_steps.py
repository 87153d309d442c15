"""Name the commands that come next after a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_eval.plan.again import write_resume_command
from serve_eval.plan.applicable_reference import write_taking
from serve_eval.plan.command_line import HOW_TO_TAKE
from serve_eval.plugins.withheld import name_folders
from serve_eval.schema import Report, TaskReport, VerdictOutcome
from serve_eval.shell_words import quote_argument, quote_path, quote_word

RED = (VerdictOutcome.FAIL, VerdictOutcome.INCONCLUSIVE, VerdictOutcome.ERROR)
"""Outcomes that a diagnosis explains."""
_LACKING = VerdictOutcome.NO_REFERENCE


def diagnose_command(out_dir: Path, include_path: Sequence[str] = ()) -> str:
    """Return the command that explains a red verdict; it may need folders of code."""
    return f"serve-eval diagnose {quote_path(out_dir)}{name_folders(include_path)}"


def next_steps(report: Report, out_dir: Path) -> Iterator[str]:
    """Yield commands, the most useful one first."""
    folder = quote_path(out_dir)
    outcomes = {task.verdict.outcome for task in report.tasks}
    if outcomes & set(RED):
        yield diagnose_command(out_dir, report.plan.include_path)
    if any(task.result.failed for task in report.tasks):
        yield write_resume_command(out_dir, report.plan)
        yield f"serve-eval show {folder} --failed"
    if (shown := next(filter(_has_example, report.tasks), None)) is not None:
        assert shown.example is not None
        several = f" --task {quote_word(shown.result.task)}" if len(report.tasks) > 1 else ""
        yield f"serve-eval show {folder}{several} {quote_argument(shown.example.id)}"
    if lacks_reference(report):
        yield write_taking(report.plan, list_unreferenced(report))


def lacks_reference(report: Report) -> bool:
    """Return True if the next steps of a run name the command that takes a reference."""
    return not report.rehearsal and any(t.verdict.outcome is _LACKING for t in report.tasks)


def explain_taking(report: Report) -> Iterator[str]:
    """Yield where the reference must come from, if the next steps take one."""
    if lacks_reference(report):
        yield HOW_TO_TAKE


def list_unreferenced(report: Report) -> list[str]:
    """Return the tasks of a plan that had no reference."""
    pairs = zip(report.plan.tasks, report.tasks, strict=True)
    return [spec.name for spec, task in pairs if task.verdict.outcome is _LACKING]


def _has_example(task: TaskReport) -> bool:
    return task.example is not None and task.verdict.outcome in (
        VerdictOutcome.FAIL,
        _LACKING,
    )
