"""Judge answers that came only after an earlier answer to their sample was lost.

A server that loses its bad answers, and gives good ones to the retries, would pass. So the first
answer of such a sample is unknown. A verdict stands if the rule gives the same outcome with these
samples missing, at their worst and at their best (Manski 1989), or if they are too few to matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from serve_eval.frozen import freeze
from serve_eval.plugins.values import OF_EVERY_RULE, VerdictRule
from serve_eval.schema import MEAN, RepairedPolicy, TaskResult, Verdict, VerdictOutcome

TRUSTED_SHARE_OF_MARGIN = 0.25
"""Share of the rule's margin that trusted answers can move the value by, unless the plan says
otherwise."""
DEPENDS = 0.01
"""Level of the test of whether the repaired samples depend on the reference's scores."""
UNDECIDED = "repaired_answers"
"""The name with which the reason of an undecided verdict begins."""
TRUSTED, DEPENDENT = "repaired_trusted", "repaired_depend"
WARNINGS = TRUSTED, DEPENDENT
"""The names with which warnings about unknown first answers begin."""
TRUST_HINT = "--set verdict.repaired=trust judges the answers that came"
_DECIDED = VerdictOutcome.PASS, VerdictOutcome.FAIL


@freeze
class Doubt:
    """The samples of a task whose first answers are unknown.

    `count` of the `planned` samples, `restarted` of them lost with their server and `unlisted` with
    an unknown finish_reason. `low` and `high` are the lowest and the highest value in points that
    their first answers allow (None: not known). `p` is that of "they do not depend on the
    reference's scores" (None: these are not known).
    """

    count: int
    planned: int
    restarted: int = 0
    unlisted: int = 0
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def share(self) -> float:
        """Share of the planned samples."""
        return self.count / self.planned

    @property
    def depends(self) -> bool:
        """True if the samples are others than chance would pick, by the reference's scores."""
        return self.p is not None and self.p <= DEPENDS


def doubt_of(result: TaskResult, p: float | None = None) -> Doubt:
    """Return the doubt about a result with doubted samples."""
    low, high = result.doubted_bounds or (None, None)
    return Doubt(
        count=result.doubted,
        planned=result.planned,
        restarted=result.restarted,
        unlisted=result.unlisted,
        low=low,
        high=high,
        p=p,
    )


def read_policy(options: Mapping[str, object]) -> RepairedPolicy:
    """Return what the options of a verdict say of samples whose first answers are unknown.

    Raises PlanError for a share outside 0..1.
    """
    known = {name: options[name] for name in OF_EVERY_RULE if name in options}
    return RepairedPolicy(**known)  # type: ignore[arg-type]


def as_bounded(result: TaskResult) -> TaskResult:
    """Return the result with bounds that the unknown first answers allow too."""
    return replace(result, bounds=result.doubted_bounds) if result.doubted else result


def allow_more(rule: VerdictRule, share: float, options: Mapping[str, object]) -> dict[str, float]:
    """Return the limit of missing answers for a rule that gets a `share` of doubted ones as such.

    These are no failures, so they do not use up the limit. Empty for a rule without a limit.
    """
    most = rule.allows_missing(options)
    if most is None:
        return {}
    return {"max_missing": min(1.0, most + share)}


def settle(
    verdict: Verdict,
    bounded: Callable[[], Verdict],
    doubt: Doubt,
    policy: RepairedPolicy,
    result: TaskResult,
    *,
    exact: bool = False,
) -> Verdict:
    """Return the verdict that holds although first answers are unknown.

    `verdict` takes the answers that came. `bounded` judges the task without them. `exact`: the rule
    compares answers, so that a missing one cannot show that all are equal.
    """
    if doubt.depends:
        verdict = replace(
            verdict,
            warnings=(
                f"{DEPENDENT}: the {doubt.count} samples whose first answers were lost are not a"
                f" random part of the prompts, by the reference's scores (p {doubt.p:.2g}): the"
                " endpoint loses some answers more often than others",
                *verdict.warnings,
            ),
        )
    if verdict.outcome not in _DECIDED:
        return verdict
    if policy.repaired == "bound" and _are_few(verdict, doubt, policy, result, exact=exact):
        return verdict
    worst = bounded()
    verdict = _settle_other(verdict, worst)
    outcome = worst.outcome
    if exact and outcome is VerdictOutcome.PASS:
        outcome = VerdictOutcome.INCONCLUSIVE
    if outcome is verdict.outcome:
        return verdict
    told = _describe(verdict, doubt, result)
    if policy.repaired == "trust":
        return replace(
            verdict, warnings=(f"{TRUSTED}: {told}; the plan trusts what came", *verdict.warnings)
        )
    reasons = (f"{UNDECIDED}: {told}. {TRUST_HINT}", *verdict.reasons)
    return replace(verdict, outcome=VerdictOutcome.INCONCLUSIVE, reasons=reasons)


def _settle_other(verdict: Verdict, worst: Verdict) -> Verdict:
    """Return the verdict with the other rule undecided if it says something else at its worst."""
    if verdict.other is None or worst.other is None or worst.other == verdict.other:
        return verdict
    undecided = replace(verdict.other, outcome=VerdictOutcome.INCONCLUSIVE)
    return replace(verdict, other=undecided)


def compute_trusted_share(verdict: Verdict, result: TaskResult, *, exact: bool = False) -> float:
    """Return the share of repaired samples that the rule of a verdict trusts by default.

    It moves the value by at most TRUSTED_SHARE_OF_MARGIN of the margin, whatever was lost. It is 0
    for a rule without a margin and for a metric without a range.
    """
    lo, hi, scale = result.metric.lo, result.metric.hi, abs(result.metric.scale)
    if exact or lo is None or hi is None or result.aggregation != MEAN.name:
        return 0.0
    if verdict.paired is not None:
        margin = verdict.paired.margin
    elif verdict.threshold is not None and verdict.reference is not None:
        margin = abs(verdict.threshold - verdict.reference)
    else:
        return 0.0
    return TRUSTED_SHARE_OF_MARGIN * margin / (scale * (hi - lo))


def measure_dependence(doubted: Sequence[int], means: Sequence[float] | None) -> float | None:
    """Return p of "the doubted samples are a random part", by the reference's means per prompt.

    Repeats follow each other in `doubted`, so places beyond `means` start again. Fisher's exact
    test if there are two different means, else the test of Mann and Whitney (1947), two-sided. None
    without means, or if all or none of the prompts are doubted.
    """
    if means is None:
        return None
    places = {i % len(means) for i in doubted}
    inside = [means[i] for i in places if not math.isnan(means[i])]
    outside = [x for i, x in enumerate(means) if i not in places and not math.isnan(x)]
    levels = sorted({*inside, *outside})
    if not inside or not outside or len(levels) < 2:
        return None
    if len(levels) == 2:
        import numpy
        from scipy.stats import fisher_exact

        right = [side.count(levels[1]) for side in (inside, outside)]
        wrong = [side.count(levels[0]) for side in (inside, outside)]
        return float(fisher_exact(numpy.array([right, wrong])).pvalue)
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(inside, outside, alternative="two-sided").pvalue)


def _are_few(
    verdict: Verdict, doubt: Doubt, policy: RepairedPolicy, result: TaskResult, *, exact: bool
) -> bool:
    """Return True if there are too few doubted samples to matter, and nothing selects them."""
    if doubt.depends:
        return False
    most = policy.max_repaired
    if most is None:
        most = compute_trusted_share(verdict, result, exact=exact)
    return doubt.share <= most


def _describe(verdict: Verdict, doubt: Doubt, result: TaskResult) -> str:
    """Return what was lost, and the value if the lost answers were as bad, or good, as possible."""
    passes = verdict.outcome is VerdictOutcome.PASS
    low_is_bad = result.metric.higher_is_better
    end = doubt.low if passes == low_is_bad else doubt.high
    words = "wrong" if passes else "right"
    told = describe_doubt(doubt)
    if end is None:
        return f"{told}; what was lost could change the verdict"
    return f"{told}; if the lost answers were {words}, the value is {end:.2f}"


def describe_doubt(doubt: Doubt) -> str:
    """Return how many first answers are unknown, and why."""
    told = f"the first answers to {doubt.count} of {doubt.planned} samples are unknown"
    causes = []
    if repaired := doubt.count - doubt.restarted - doubt.unlisted:
        causes.append(f"{repaired} were lost in failed attempts and asked again")
    if doubt.restarted:
        causes.append(f"{doubt.restarted} were in flight when the server ended or restarted")
    if doubt.unlisted:
        causes.append(f"{doubt.unlisted} ended with an unknown finish_reason")
    return f"{told}: {', '.join(causes)}"
