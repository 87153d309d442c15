"""TensorRT-LLM's rule: fail if the value is beyond the one-sided threshold of the reference."""

from __future__ import annotations

from dataclasses import replace

from serve_eval.schema import Hypothesis, Reference, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.pairs import Pairs
from serve_eval.verdicts import validity
from serve_eval.verdicts.rules import _classic

EARLY_STOP = "mean"


def judge(
    result: TaskResult,
    reference: Reference,
    hypothesis: Hypothesis,
    pairs: Pairs | None = None,
    *,
    max_missing: float = validity.MAX_MISSING,
) -> Verdict:
    """Return the verdict of one task.

    `hypothesis` has every override applied and its `num_samples` set, which is the n of the
    formula. Missing answers bound the value from both sides. The outcome is PASS or FAIL only if
    both bounds agree and at most `max_missing` of the planned samples are missing, else
    INCONCLUSIVE. It is ERROR if nothing was scored. With `pairs` the verdict also carries the
    paired comparison. This changes only the warnings: the comparison detects drops that this rule
    passes.
    """
    verdict = _classic.judge(result, reference, hypothesis, max_missing=max_missing)
    drop = 0.0 if verdict.outcome is VerdictOutcome.ERROR else _classic.find_margin(verdict)
    if pairs is None or drop == 0.0:
        return verdict
    from serve_eval.verdicts.rules._paired import compare, small_drop
    from serve_eval.verdicts.rules._paired import warnings as paired_warnings

    told = compare(pairs, result, margin=drop, alpha=hypothesis.alpha, max_missing=max_missing)
    warnings = (*verdict.warnings, *paired_warnings(told))
    if verdict.outcome is VerdictOutcome.PASS and told.finding == "SMALL_DROP":
        # Another rule may fail the task for all that, so the words are about the threshold only.
        assert verdict.threshold is not None
        warnings = (
            *warnings,
            f"{small_drop(told)}; the value is within the classic threshold of"
            f" {verdict.threshold:.3f}",
        )
    return replace(verdict, paired=told, warnings=warnings)
