"""Say first what failed: the verdict of a comparison or of a suite, before its causes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.report.one_line import write_line
from serve_eval.report.summary.table import ORDER
from serve_eval.report.task_line import make_compared_line
from serve_eval.schema import Comparison, VerdictOutcome
from serve_eval.workflows.diagnose.ended import describe_end, find_end
from serve_eval.workflows.diagnose.finding import Finding, list_leading

if TYPE_CHECKING:
    from serve_eval.workflows.diagnose.outcomes import FolderOutcomes
    from serve_eval.workflows.diagnose.story import DiagnosedRun


def head_comparison(
    comparison: Comparison | None, findings: Sequence[Finding], folder: Path
) -> tuple[str, ...]:
    """Return a line for each compared task, the worst first, with its likeliest cause."""
    if comparison is None:
        end = describe_end(find_end(folder))
        said = f"the comparison in {folder} did not finish: it has no verdict"
        return (f"{said}; {end}" if end else said,)
    causes = {one.task: one.brief for one in reversed(list_leading(findings))}
    tasks = sorted(comparison.tasks, key=lambda one: ORDER.index(one.verdict.outcome))
    return tuple(
        write_line(make_compared_line(one, comparison.b.model, causes.get(one.task, "")))
        for one in tasks
    )


def head_others(outcomes: FolderOutcomes) -> tuple[str, ...]:
    """Return the verdict of a suite with its counts, and lines about what has no run folder."""
    suite = (f"{outcomes.outcome} {outcomes.counted_as}",) if outcomes.counted_as else ()
    ended = [f"{one.name}: {one.outcome}: {one.why}" for one in outcomes.judged if one.why]
    return (*suite, *ended)


def rank_run(run: DiagnosedRun) -> int:
    """Return a sort key: the run with the worst outcome first. One without an outcome is worst."""
    known = [task.outcome for task in run.tasks]
    return min((0 if one is None else ORDER.index(VerdictOutcome(one)) for one in known), default=0)
