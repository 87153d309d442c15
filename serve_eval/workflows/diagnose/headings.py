"""Say first what failed: the verdict of a comparison or of a suite, before its causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.evaluation.storage.reports.suite_files import find_suite_report
from serve_eval.report.one_line import write_line
from serve_eval.report.summary.table import ORDER
from serve_eval.report.task_line import make_compared_line
from serve_eval.schema import Comparison, VerdictOutcome
from serve_eval.shell_words import quote_path
from serve_eval.workflows.diagnose.ended import describe_end, find_end
from serve_eval.workflows.diagnose.finding import Finding, list_leading

if TYPE_CHECKING:
    from serve_eval.workflows.diagnose.evidence import Evidence
    from serve_eval.workflows.diagnose.story import DiagnosedRun


def head_comparison(
    comparison: Comparison | None, findings: Sequence[Finding], folder: Path
) -> tuple[str, ...]:
    """Return a line for each compared task, the worst first, with its likeliest cause."""
    if comparison is None:
        end = describe_end(find_end(folder))
        said = f"the comparison in {folder} did not finish: it has no verdict"
        again = f"next: the same serve-eval compare command with -o {quote_path(folder)}"
        return (f"{said}; {end}" if end else said, again)
    causes = {one.task: one.brief for one in reversed(list_leading(findings))}
    tasks = sorted(comparison.tasks, key=lambda one: ORDER.index(one.verdict.outcome))
    return tuple(
        write_line(make_compared_line(one, comparison.b.model, causes.get(one.task, "")))
        for one in tasks
    )


def name_next(comparison: Comparison | None, b: Evidence) -> tuple[str, ...]:
    """Return the one command that comes first if B failed and its servers are known."""
    failed = comparison is not None and any(
        one.verdict.outcome is VerdictOutcome.FAIL for one in comparison.tasks
    )
    if not failed or not b.has_legs:
        return ()
    return (
        f"next: serve-eval attribute {b.place_and_code} (asks each server of B, and each pair)",
    )


def head_suite(folder: Path) -> tuple[str, ...]:
    """Return the verdict of a suite with the outcomes of its tasks; nothing if it has no report."""
    report = find_suite_report(folder)
    if report is None:
        return ()
    counts = Counter(row.outcome for row in report.rows)
    said = ", ".join(f"{counts[one]} {one.value}" for one in ORDER if counts[one])
    return (f"{report.verdict} suite {report.name}: {said}",)


def rank_run(run: DiagnosedRun) -> int:
    """Return a sort key: the run with the worst outcome first. One without an outcome is worst."""
    known = [task.outcome for task in run.tasks]
    return min((0 if one is None else ORDER.index(VerdictOutcome(one)) for one in known), default=0)
