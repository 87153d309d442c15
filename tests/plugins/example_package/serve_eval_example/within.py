"""Within: passes if the value is at most `points` below the reference."""

from __future__ import annotations

from serve_eval.schema import Hypothesis, Reference, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.pairs import Pairs


def judge(
    result: TaskResult,
    reference: Reference,
    hypothesis: Hypothesis,
    pairs: Pairs | None = None,
    *,
    points: float = 1.0,
) -> Verdict:
    """Pass if the value is at most `points` below the reference.

    Missing answers count as wrong.
    """
    threshold = reference.value - points
    value = result.value if result.bounds is None else result.bounds[0]
    outcome = VerdictOutcome.ERROR
    if value is not None:
        outcome = VerdictOutcome.PASS if value >= threshold else VerdictOutcome.FAIL
    return Verdict(
        task=result.task,
        outcome=outcome,
        rule="within",
        evaluated=result.value,
        bounds=result.bounds,
        reference=reference.value,
        threshold=threshold,
        num_samples=hypothesis.num_samples,
    )
