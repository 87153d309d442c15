"""Name the likeliest kinds of cause of a FAIL against a reference that nothing else explains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from serve_eval.report.attribution import accusations
from serve_eval.schema import VerdictOutcome
from serve_eval.workflows.diagnose.breakdown import describe_verify
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import OTHER_MODEL, Finding, ids
from serve_eval.workflows.diagnose.slice_data import Data, PairedScores, pair_with_reference

RULE = "even_loss"
LIKELIEST = "weights, precision, chat template or sampling"
"""The kinds of fault that lower the score of all requests alike."""
TRANSFER = "the transfer of KV caches between its context and generation servers"
"""A further kind, of a deployment with such servers: every request passes through it."""
OTHER_LAUNCH = "other launcher options than the reference's"
"""The likeliest cause of an even loss where they differ."""


def find_even_loss(
    run: Evidence, found: Iterable[Finding], data: Data, *, differs: bool
) -> Iterator[Finding]:
    """Yield a finding for each task that failed and of which no finding explains an answer.

    `differs`: the launcher options differ from those of the reference, which is named first.
    """
    about = {one.task for one in found if not one.is_remark}
    for task in run.tasks:
        if task.outcome is VerdictOutcome.FAIL and not about & {None, task.name}:
            yield from _describe(run, task, data, differs)


def _describe(run: Evidence, task: TaskEvidence, data: Data, differs: bool) -> Iterator[Finding]:
    if task.report is None or task.report.reference is None or not task.lost:
        return
    blamed = task.report.attribution
    if blamed is not None and any(accusations(blamed)):  # the report names the cause
        return
    scores = pair_with_reference(task, data)
    another = scores is not None and _is_like_another(scores)
    again = ["rule out the difference above first"] if differs else []
    likeliest = f"{LIKELIEST} that differ from the reference's"
    if run.has_legs:
        likeliest += f", or {TRANSFER}"
        again.append(run.attribute)
    yield Finding(
        rule=RULE,
        told=(
            "the loss is even: no part of the prompts, servers or answers is proven to lose more"
            f" than the others; likeliest are {likeliest}" + (f"; {OTHER_MODEL}" if another else "")
        ),
        change=(*again, describe_verify(run)),
        count=len(task.lost),
        of=len(task.asked),
        task=task.name,
        samples=ids(task.lost),
        lost=len(task.lost),
        rather=LIKELIEST,
        leads=not (differs or another),
    )


def _is_like_another(scores: PairedScores) -> bool:
    from serve_eval.stats.other_model import is_like_another

    return is_like_another(*scores.rights())
