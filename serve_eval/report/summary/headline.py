"""Build the first line of a summary, and the line that draws its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rich.text import Text

from serve_eval.report.summary import figures
from serve_eval.report.summary.axis import AxisPoints, Marks
from serve_eval.report.summary.summary_task import SummaryTask
from serve_eval.schema import VerdictOutcome

STYLES: Final[Mapping[str, str]] = {
    VerdictOutcome.PASS: "bold green",
    VerdictOutcome.FAIL: "bold red",
    VerdictOutcome.ERROR: "bold red",
    VerdictOutcome.NO_REFERENCE: "bold",
}
OTHER = "bold yellow"
WITH_MARGIN = ("paired", "noninferiority")
"""Rules that ask whether a drop of a margin is excluded."""
AROUND = 18
"""Width of the label and of the ends of the drawn line."""
WIDEST = 72
"""Width of the drawn line at most, without its labels."""


def badge(outcome: str, style: str) -> Text:
    """Return the verdict as a block of colour."""
    return Text().append(f" {outcome} ", style=f"{style} reverse")


def style_of(outcome: str) -> str:
    """Return the colour of an outcome."""
    return STYLES.get(outcome, OTHER)


def list_parts(task: SummaryTask, marks: Marks | None) -> Iterator[str]:
    """Yield the value of a task, what it is compared with, the change and the rule."""
    metric, verdict = task.result.metric, task.verdict
    if (value := figures.show_value(task)) != "-":
        shown = "; ".join(filter(None, (value, figures.bound_next_to_value(task))))
        yield " ".join(filter(None, (marks.value if marks else "", task.names[0], shown)))
    if verdict.reference is not None:
        shown = f"{task.names[1]} {figures.figure(verdict.reference, metric)}"
        yield f"{marks.reference} {shown}" if marks else shown
    if (change := figures.change(task)) is not None:
        yield figures.add_sign(change, metric)
    if rule := criterion(task):
        mark = f"{marks.threshold} " if marks and verdict.limit is not None else ""
        yield f"{mark}{rule}"


def criterion(task: SummaryTask) -> str:
    """Return in a few words what decides the verdict."""
    verdict, metric = task.verdict, task.result.metric
    if verdict.rule == "none":
        return ""
    if verdict.limit is not None:
        side = "below" if metric.higher_is_better else "above"
        return f"fails {side} {figures.figure(verdict.limit, metric)} ({verdict.rule})"
    if verdict.rule in WITH_MARGIN and verdict.paired is not None:
        return f"margin {figures.figure(verdict.paired.margin, metric)} ({verdict.rule})"
    return f"rule {verdict.rule}"


def points_of(task: SummaryTask) -> AxisPoints | None:
    """Return what the drawn line of a task shows, or None if its value is not known in points."""
    result, verdict = task.result, task.verdict
    value = verdict.evaluated
    if value is None or result.failed or not figures.in_points(result.metric):
        return None
    return AxisPoints(
        value=value,
        interval=result.interval,
        threshold=verdict.limit,
        reference=verdict.reference,
    )
