"""Explain the answers of a plan in words: by rule, and with what they assume. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.report.real_size import write_number
from serve_eval.workflows.power.answers import (
    CLASSIC,
    EXCLUDED,
    PAIRED,
    PAIRED_FAIL,
    Detection,
    Needed,
    SizeRow,
    TaskPower,
    ThetaSize,
)
from serve_eval.workflows.power.assumed import DEFAULT, Assumed

LABELS = {CLASSIC: "classic", PAIRED: "paired", PAIRED_FAIL: "FAIL", EXCLUDED: "excluded"}
"""Labels of the samples that a rule needs."""
LONG_S = 10.0
"""Seconds from which a time has no decimals."""


def count_samples(n: int) -> str:
    """Return a number of samples: "1,319 samples"."""
    return f"{n:,} sample{'s' * (n != 1)}"


def write_points(points: float) -> str:
    """Return a drop as a user gave it: "1 point"."""
    return f"{points:g} point{'s' * (points != 1)}"


def write_drop(drop: float | None) -> str:
    """Return a drop in points that was computed; "no" if none is large enough."""
    return "no" if drop is None else write_number(drop, 2)


def explain(one: TaskPower) -> Iterator[tuple[str, str]]:
    """Yield the answers by rule, and what they assume, each with a label."""
    if one.detection is not None and not one.sizes:
        yield from _explain_detection(one.detection, "")
    if one.at is not None:
        only = one.detection is not None and not one.sizes
        yield from _explain_size(one.at, one.assumed, f"{count_samples(one.at.n)}: " * only)
    if one.detection is not None and one.sizes:
        about = f"for a drop of {write_points(one.detection.drop)}: "
        yield from _explain_detection(one.detection, about)
    if one.theta is not None:
        yield "theta", _explain_theta(one.theta, one.assumed)
    yield from _describe_measured(one)
    yield from _describe_assumed(one.assumed)


def explain_margin(planned: Assumed, n: int) -> str:
    """Return what makes a proven drop FAIL."""
    whose = "the rule's default" if planned.margin is None else "--margin"
    return (
        f"FAIL is a proven drop if one of the margin, {planned.find_margin(n):.4g} points"
        f" ({whose} with {count_samples(n)}), is not excluded"
    )


def _explain_size(at: SizeRow, planned: Assumed, about: str) -> Iterator[tuple[str, str]]:
    """Yield what n samples find by the paired rule and by the classic one, `about` in front."""
    proof, fail = (
        f"a drop of {write_drop(drop)} points" if drop is not None else "no drop"
        for drop in (at.proven, at.failed)
    )
    yield "paired", f"{about}proves {proof}, and fails {fail}: {explain_margin(planned, at.n)}"
    yield (
        "classic",
        f"{about}fails {write_number(-at.threshold)} points below the reference; finds a drop of"
        f" {write_drop(at.theta)} points (theta) with a probability of {1 - planned.beta:g}",
    )
    if about:
        return
    yield (
        "ask",
        f"all {count_samples(at.n)}, against a reference with the score of each; without the"
        " scores, the classic rule judges",
    )


def _explain_detection(found: Detection, about: str) -> Iterator[tuple[str, str]]:
    """Yield the samples that each rule needs for a drop, `about` in front."""
    for one in found.needed:
        yield LABELS[one.rule], f"{about}{_describe_needed(one)}"
    if not about:
        n = max(one.n or 0 for one in found.needed if one.rule in (PAIRED, PAIRED_FAIL))
        yield "ask", f"{count_samples(n)}, against a reference with the score of each"


def _describe_needed(one: Needed) -> str:
    samples = "no number of samples" if one.n is None else count_samples(one.n)
    if one.seconds is None:
        return f"{samples} {one.purpose}"
    time = f"{one.seconds:,.0f}" if one.seconds >= LONG_S else f"{one.seconds:.2g}"
    return f"{samples} {one.purpose}; {time} s at the measured throughput"


def _explain_theta(found: ThetaSize, planned: Assumed) -> str:
    return (
        f"{write_points(found.theta)} take {count_samples(found.n)} by the classic rule (sigma"
        f" {planned.sigma:g}, alpha {planned.alpha:g}, beta {planned.beta:g}); row of the table:"
        f" {found.row}"
    )


def _describe_measured(one: TaskPower) -> Iterator[tuple[str, str]]:
    """Yield what the run shows."""
    if (measured := one.measured) is None:
        return
    rate = "" if measured.per_second is None else f", {measured.per_second:.1f} samples per second"
    spread = (
        f"standard deviation {measured.sigma:.3f} points (right or wrong with that mean:"
        f" {measured.bernoulli:.3f})"
        if measured.sigma
        else "all with the same score: their spread is not known"
    )
    yield "run", f"{count_samples(measured.n)}, value {measured.value:.3f}{rate}; {spread}"


def _describe_assumed(planned: Assumed) -> Iterator[tuple[str, str]]:
    """Yield the numbers that the answers assume, and where they are from."""
    alpha = f"alpha {planned.alpha:g}"
    if planned.flips_of == planned.sigma_of == DEFAULT:
        both = f"a flip rate of {planned.flip_rate:g} and sigma {planned.sigma:g}"
        yield "assumes", f"{both}, the defaults; {alpha}"
    else:
        yield "flips", f"flip rate {planned.flip_rate:.4g}, {planned.flips_of}; {alpha}"
        yield "sigma", f"sigma {planned.sigma:.5g}, {planned.sigma_of}"
    if planned.tests > 1:
        yield (
            "tests",
            f"proofs at alpha / {planned.tests} = {planned.proof:g}: Holm's bound for the worst"
            f" rank of {planned.tests} tests; other ranks have more power",
        )
    if planned.design_effect != 1.0:
        whose = "" if planned.effect_of is None else f", {planned.effect_of}"
        yield (
            "groups",
            f"design effect {planned.design_effect:.3g}{whose}: prompts share groups, and the"
            " paired rules need that many times the samples of independent prompts",
        )
    if planned.repeats > 1:
        yield (
            "repeats",
            f"{planned.repeats} answers to each prompt on both sides (about: sums of one each)",
        )
        yield (
            "proof",
            "no build of equal accuracy explains the drop; the noise is that of the prompts and of"
            " the answers",
        )
        yield (
            "exclude",
            "a drop on these prompts; the noise is that of the answers alone, so that"
            f" {planned.repeats} answers to a prompt count as {planned.repeats} prompts",
        )
