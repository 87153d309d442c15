"""TensorRT-LLM's rule for the acceptance length of speculative decoding, beside the verdict on the
accuracy.
"""

from __future__ import annotations

from dataclasses import replace

from serve_eval.schema import Acceptance, AcceptanceCheck, TaskResult, Verdict, VerdictOutcome
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
    """The verdict of a task with that of its acceptance length: it passes at `min_al` or above.

    A failure is one of the task, whatever its value. A PASS becomes INCONCLUSIVE when more than
    MAX_MISSING of the scored answers do not tell their tokens per step, or none of them took a
    second step. What was not judged, or not answered at all, stays so.
    """
    answers = 0 if told is None else told.answers
    length = (
        told.length if told is not None and answers >= (1.0 - MAX_MISSING) * result.scored else None
    )
    passed = None if length is None else length >= entry.min_al
    check = AcceptanceCheck(
        test=test, reference=entry.ref_al, least=entry.min_al, length=length, passed=passed
    )
    verdict = replace(verdict, acceptance=check)
    unjudged = (VerdictOutcome.NOT_JUDGED, VerdictOutcome.UNSUPPORTED, VerdictOutcome.ERROR)
    if passed or verdict.outcome in unjudged:
        return verdict
    if length is None:
        why = (
            f"no_acceptance_length: {answers} of {result.scored} answers tell their tokens per step"
        )
        why += "" if answers < result.scored else ", and none took a second step"
        outcome = (
            VerdictOutcome.INCONCLUSIVE
            if verdict.outcome is VerdictOutcome.PASS
            else verdict.outcome
        )
        return replace(verdict, outcome=outcome, reasons=(*verdict.reasons, why))
    why = (
        f"acceptance_length: {length:.3f} tokens per step are below {entry.min_al:.3f}, the least"
        f" of {test}"
    )
    return replace(verdict, outcome=VerdictOutcome.FAIL, rule=RULE, reasons=(*verdict.reasons, why))
