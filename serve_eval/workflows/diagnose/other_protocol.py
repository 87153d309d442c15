"""The rule about a reference of another protocol, and how much of a drop its limit explains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from serve_eval.schema import MEAN, TaskReport, VerdictOutcome
from serve_eval.verdicts.pairing import is_higher_better
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding

RULE = "protocol"
_CUT = "truncated"
"""The rule about answers that the limit cuts."""
_LIMIT = "max_tokens"
"""The field whose effect is bounded: it changes no answer but those that it cuts."""


def find_other_protocol(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if the reference was measured under a different protocol.

    Another max_tokens alone explains a drop only as far as more answers are cut than in the
    reference's runs. If that is less than half of it, the finding is `minor`.
    """
    if task.report is None or task.passes:
        return
    told = task.report.verdict.protocol or ""
    _, allowed, fields = told.partition("mismatch allowed: ")
    if allowed:
        names = [field.strip() for field in fields.split(",")]
        flags = " ".join(f"--allow-mismatch {name}" for name in names)
        known = _bound_effect(task, task.report) if names == [_LIMIT] else None
        more, minor = ("", False) if known is None else known
        yield _describe(
            task,
            f"the reference was measured under a different protocol: {fields} differ, and the plan"
            f" allows it{more}",
            f"use the protocol of the reference, without {flags}",
            minor=minor,
        )
    if "suite_exact would change" in told and task.outcome is VerdictOutcome.FAIL:
        yield _describe(
            task,
            f"the protocol of the reference is {told}",
            f"--set {task.word}.suite_exact=true",
        )


def _describe(task: TaskEvidence, told: str, change: str, *, minor: bool = False) -> Finding:
    n = len(task.asked)
    return Finding(
        rule=RULE,
        told=told,
        change=(change,),
        count=n,
        of=n,
        lost=len(task.lost),
        task=task.name,
        leads=not minor,
        minor=minor,
    )


def _bound_effect(task: TaskEvidence, report: TaskReport) -> tuple[str, bool] | None:
    """Return how much of the drop the limit explains at most, and if that is less than half of it.

    The bound is that with as many cut answers right as exceed those of the reference (Manski 1989).
    None: it is not known, since finish reasons are of no known server, or answers do not
    contribute to the value one by one.
    """
    result, reference = report.result, report.reference
    lo, hi, scale = result.metric.lo, result.metric.hi, result.metric.scale
    if reference is None or result.value is None or result.unlisted_finishes:
        return None
    higher = is_higher_better(result.metric, reference)
    best = hi if higher else lo
    gains = [
        None if best is None or one.line is None else abs(best - one.line.value)
        for one in task.texts
        if one.response is not None and one.response.truncated
    ]
    cut, answers = _read_reference_cuts(report)
    new = max(0, len(gains) - cut * result.scored // max(1, answers))
    if new and (result.aggregation != MEAN.name or None in gains):
        return None
    gain = math.fsum(sorted((one or 0.0 for one in gains), reverse=True)[:new])
    points = scale * gain / max(1, result.scored)
    drop = reference.value - result.value if higher else result.value - reference.value
    if drop <= 0:
        return None
    there = f" ({cut} of {answers} in the reference's runs)" if cut else ""
    told = (
        f"; {len(gains)} of {len(task.texts)} answers are cut{there}, which explains at most"
        f" {points:.1f} of the {drop:.1f} points that are lost"
    )
    return told, 2 * points < drop


def demote_cuts(found: Iterable[Finding]) -> list[Finding]:
    """Return findings, of which those about cut answers are `minor` where the limit is.

    They speak of the same answers, whose surplus is not known one by one.
    """
    kept = list(found)
    minor = {one.task for one in kept if one.rule == RULE and one.minor}
    return [
        replace(one, minor=True) if one.rule == _CUT and one.task in minor else one for one in kept
    ]


def _read_reference_cuts(report: TaskReport) -> tuple[int, int]:
    """Return how many answers of the reference's runs were cut, and of how many.

    (0, 0) if that is not known, so that all cut answers of this run count as new.
    """
    effect = report.verdict.cut
    return (0, 0) if effect is None else (effect.reference_cut or 0, effect.reference_answers or 0)
