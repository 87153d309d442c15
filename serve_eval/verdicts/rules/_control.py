"""Judge a control: the same questions without what may disturb the model in another task.

TensorRT-LLM's suite fails its mixed-modality tests if questions among other media lose more than
MOST_DROP points against the same questions alone, or more than MOST_GROUP_DROP points in one group.
These limits know nothing of chance: McNemar's test of the same pairs is reported too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from serve_eval.schema import TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.pairs import Pairs

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray

RULE = "control"
MOST_DROP, MOST_GROUP_DROP = 5.0, 10.0
"""Points that may be lost at most, over all questions and in one group."""
ROUNDING = 1e-9


def judge(
    result: TaskResult,
    other: str,
    pairs: Pairs,
    groups: Sequence[str],
    *,
    alpha: float,
    max_missing: float,
) -> Verdict:
    """Return the verdict of a control with this result.

    `pairs` have the scores of the control as the reference and those of the task `other` as the
    candidate; `groups` has the group of each question. Missing answers are taken at their best and
    at their worst: the outcome is PASS or FAIL only if both agree.
    """
    from serve_eval.verdicts.rules._paired import compare, small_drop

    scale = result.metric.scale
    told = compare(pairs, result, margin=MOST_DROP, alpha=alpha, max_missing=max_missing)
    surely = _find_losses(scale * pairs.best, groups)
    maybe = _find_losses(scale * pairs.worst, groups)
    outcome, warnings = VerdictOutcome.PASS, []
    reasons = [f"lost_among_others: {loss} of {other}" for loss in surely]
    if surely:
        outcome = VerdictOutcome.FAIL
        if told.p is not None and told.p > alpha:
            warnings.append(
                f"the limits fail {other}, but the paired test of all questions does not show a"
                f" drop (p {told.p:.3f}): ask more of them"
            )
    elif maybe or pairs.missing_share > max_missing + ROUNDING:
        outcome = VerdictOutcome.INCONCLUSIVE
        reasons = [f"missing_results: {pairs.missing} of {pairs.n} pairs lack an answer"]
    elif told.p is not None and told.p <= alpha:
        warnings.append(f"{small_drop(told)} of {other} within the limits")
    return Verdict(
        task=result.task,
        outcome=outcome,
        rule=RULE,
        evaluated=result.value,
        bounds=result.bounds,
        alpha=alpha,
        num_samples=pairs.n,
        paired=told,
        reasons=tuple(reasons),
        warnings=tuple(warnings),
    )


def _find_losses(differences: FloatArray, groups: Sequence[str]) -> list[str]:
    """Return a text for each limit that is exceeded. `differences` are in points per question."""
    drop, found = -float(differences.mean()), []
    if drop > MOST_DROP + ROUNDING:
        found.append(f"{drop:.2f} points, more than {MOST_DROP:g},")
    for group in dict.fromkeys(groups):
        here = [d for d, g in zip(differences, groups, strict=True) if g == group]
        if (drop := -float(sum(here)) / len(here)) > MOST_GROUP_DROP + ROUNDING:
            found.append(f"{drop:.2f} points of {group}, more than {MOST_GROUP_DROP:g},")
    return found
