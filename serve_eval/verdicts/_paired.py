"""The paired comparison that the rules share: the same prompts, answered by the reference's runs and by this one."""

from __future__ import annotations

import math

from serve_eval.errors import PlanError
from serve_eval.schema import PairedComparison, TaskResult
from serve_eval.stats.drop import Method
from serve_eval.stats.judgement import judge
from serve_eval.stats.pairs import Pairs


def check_margin(margin: object) -> None:
    """Raises PlanError for what is no drop in points; None stands for the rule's own."""
    if margin is not None and not (isinstance(margin, int | float) and 0.0 < margin < math.inf):
        raise PlanError(".margin: must be above 0 and finite, in points")


def compare(
    pairs: Pairs,
    result: TaskResult,
    *,
    margin: float,
    alpha: float,
    max_missing: float,
    method: str = Method.AUTO,
) -> PairedComparison:
    """What the pairs say, in points. `margin` is the drop that matters, in points and positive."""
    scale = result.metric.scale
    told = judge(pairs, margin=margin / scale, alpha=alpha, method=method, max_missing=max_missing)
    test, ends = told.test, told.bounds
    changed = (pairs.down or 0) + (pairs.up or 0)
    return PairedComparison(
        reference_runs=pairs.reference_runs,
        candidate_runs=pairs.candidate_runs,
        pairs=pairs.n,
        missing=pairs.missing,
        method=test.method.value,
        difference=scale * test.mean,
        se=None if test.se is None else scale * test.se,
        df=test.df,
        down=pairs.down,
        up=pairs.up,
        flip_rate=None if pairs.down is None else changed / pairs.n,
        p=test.p,
        p_exact=test.p_exact,
        alpha=alpha,
        margin=margin,
        lower=_points(scale, ends.lower),
        upper=_points(scale, ends.upper),
        noninferior=told.noninferior.holds,
        equivalent=told.equivalent.holds,
        finding=told.finding.value,
        reasons=tuple(reason.value for reason in told.reasons),
    )


def _points(scale: float, value: float) -> float | None:
    """A bound in points; None where nothing is excluded."""
    return scale * value if math.isfinite(value) else None
