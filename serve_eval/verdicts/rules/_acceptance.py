"""Add TensorRT-LLM's check of the acceptance length of speculative decoding to a verdict."""

from __future__ import annotations

from dataclasses import replace

from serve_eval.schema import Acceptance, AcceptanceCheck, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.classic import compare
from serve_eval.stats.judgement import ROUNDING
from serve_eval.verdicts.references import AcceptanceLength
from serve_eval.verdicts.validity import MAX_MISSING

RULE = "acceptance_length"


def judge(
    verdict: Verdict,
    result: TaskResult,
    told: Acceptance | None,
    test: str,
    entry: AcceptanceLength,
) -> Verdict:
    """Return the verdict of a task with its acceptance length, which passes at `min_al` or above.

    A failed acceptance length fails the task, even if its value passes. A PASS becomes INCONCLUSIVE
    if a larger share than MAX_MISSING of the scored answers does not report its tokens per step, or
    if no answer took a second step. The outcomes NOT_JUDGED, UNSUPPORTED, NOT_ASKED and ERROR
    stay as they are.
    """
    answers = 0 if told is None else told.answers
    enough = result.scored - answers <= MAX_MISSING * result.scored + ROUNDING
    length = told.length if told is not None and enough else None
    passed = None if length is None else compare(length, entry.min_al) >= 0
    check = AcceptanceCheck(
        test=test, reference=entry.ref_al, least=entry.min_al, length=length, passed=passed
    )
    verdict = replace(verdict, acceptance=check)
    unjudged = (
        VerdictOutcome.NOT_JUDGED,
        VerdictOutcome.SHARD,
        VerdictOutcome.UNSUPPORTED,
        VerdictOutcome.NOT_ASKED,
        VerdictOutcome.ERROR,
    )
    if passed or verdict.outcome in unjudged:
        return verdict
    if length is None:
        why = (
            f"no_acceptance_length: {answers} of {result.scored} answers report their tokens per"
            " step"
        )
        why += "" if answers < result.scored else ", and none took a second step"
        outcome = (
            VerdictOutcome.INCONCLUSIVE
            if verdict.outcome is VerdictOutcome.PASS
            else verdict.outcome
        )
        return replace(verdict, outcome=outcome, reasons=(*verdict.reasons, why))
    why = (
        f"acceptance_length: {length:.3f} tokens per step are below {entry.min_al:.3f}, the minimum"
        f" of {test}"
    )
    return replace(verdict, outcome=VerdictOutcome.FAIL, rule=RULE, reasons=(*verdict.reasons, why))
