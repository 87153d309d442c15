"""Compare the answers of this run with those of the reference's runs to the same prompts."""

from __future__ import annotations

import math

from serve_eval.errors import PlanError
from serve_eval.schema import AnchorComparison, PairedComparison, TaskResult
from serve_eval.stats.bounds import Bounds
from serve_eval.stats.clusters import design_effect
from serve_eval.stats.drop import Method
from serve_eval.stats.judgement import AnchorTest, judge
from serve_eval.stats.pairs import Pairs


def check(**options: object) -> None:
    """Raise PlanError unless `margin` is a drop in points; None stands for the rule's own."""
    margin = options.get("margin")
    if margin is not None and not (isinstance(margin, int | float) and 0.0 < margin < math.inf):
        raise PlanError(".margin: must be above 0 and finite, in points")


SURE = 0.001
"""p of Cochran's Q up to which runs are said to differ in a warning. All warnings of a healthy run,
of one task or of eight, have .05 together, so that this one must not take it alone."""


def compare(
    pairs: Pairs,
    result: TaskResult,
    *,
    margin: float,
    alpha: float,
    max_missing: float,
    method: str = Method.AUTO,
) -> PairedComparison:
    """Return the paired comparison in points.

    `margin` is the drop that matters, in points and positive.
    """
    scale = result.metric.scale
    told = judge(pairs, margin=margin / scale, alpha=alpha, method=method, max_missing=max_missing)
    test, ends = told.test, told.bounds
    changed = (pairs.down or 0) + (pairs.up or 0)
    runs = min(pairs.reference_runs, pairs.candidate_runs)
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
        flip_rate=None if pairs.down is None else changed / (runs * pairs.n),
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
        cochran_q=None if told.run_effect is None else told.run_effect.q,
        cochran_p=None if told.run_effect is None else told.run_effect.p,
        inflation=1.0 if told.run_effect is None else told.run_effect.inflation,
        anchors=None if told.anchors is None else _anchors(told.anchors),
        interval=_interval(scale, told.interval),
        answer_pairs=pairs.answer_pairs,
        groups=None if pairs.clusters is None else pairs.units,
        design_effect=design_effect(
            pairs.differences, None if pairs.clusters is None else pairs.clusters[pairs.complete]
        ),
    )


def warnings(paired: PairedComparison) -> tuple[str, ...]:
    """Return a warning if the runs of one side surely differ as a whole.

    Every run effect at 5 % widens the errors, and the row of the change says so.
    """
    if paired.inflation == 1.0 or paired.cochran_p is None or paired.cochran_p > SURE:
        return ()
    return (
        (
            "run_effect: the runs of one side differ as a whole (Cochran's Q"
            f" {paired.cochran_q:.2f}, p {paired.cochran_p:.2g}); the paired comparison multiplies"
            f" every error by {paired.inflation:.2f}"
        ),
    )


def small_drop(paired: PairedComparison) -> str:
    """Return the warning for a proven drop that the rule does not fail."""
    return (
        f"small_drop: the paired comparison proves a drop (p {paired.p:.4f} at level"
        f" {paired.alpha:g})"
    )


def _anchors(found: AnchorTest) -> AnchorComparison:
    return AnchorComparison(
        anchors=found.anchors,
        reference_lost=found.reference_lost,
        candidate_lost=found.candidate_lost,
        p=found.test.p,
        p_range=found.test.p_range,
    )


def _interval(scale: float, ends: Bounds) -> tuple[float, float] | None:
    lower, upper = _points(scale, ends.lower), _points(scale, ends.upper)
    return None if lower is None or upper is None else (lower, upper)


def _points(scale: float, value: float) -> float | None:
    """Return a bound in points; None if nothing is excluded."""
    return scale * value if math.isfinite(value) else None
