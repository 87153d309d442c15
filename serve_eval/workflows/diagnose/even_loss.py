"""Name the likeliest kinds of cause of a FAIL against a reference that nothing else explains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from serve_eval.report.attribution import accusations
from serve_eval.schema import VerdictOutcome
from serve_eval.workflows.diagnose.breakdown import describe_verify
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding, ids

RULE = "even_loss"
LIKELIEST = "weights, precision, chat template or sampling"
"""What lowers the score of all requests alike."""


def find_even_loss(run: Evidence, found: Iterable[Finding], differs: bool) -> Iterator[Finding]:
    """Yield a finding for each task that failed and that no finding is about.

    `differs`: the launcher options differ from those of the reference, which is named first.
    """
    told = {one.task for one in found}
    for task in run.tasks:
        if task.outcome is VerdictOutcome.FAIL and not told & {None, task.name}:
            yield from _describe(run, task, differs)


def _describe(run: Evidence, task: TaskEvidence, differs: bool) -> Iterator[Finding]:
    if task.report is None or task.report.reference is None or not task.lost:
        return
    blamed = task.report.attribution
    if blamed is not None and any(accusations(blamed)):  # the report names the cause
        return
    again = ["rule out the difference above first"] if differs else []
    yield Finding(
        rule=RULE,
        told=(
            "the loss is even: nothing here shows more of it in some prompts, servers or answers"
            f" than in others; likeliest are {LIKELIEST} that differ from the reference's"
        ),
        change=(*again, describe_verify(run)),
        count=len(task.lost),
        of=len(task.asked),
        task=task.name,
        samples=ids(task.lost),
        lost=len(task.lost),
        rather=LIKELIEST,
        leads=not differs,
    )
