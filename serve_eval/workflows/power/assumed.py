"""Choose the numbers that a plan assumes: given, measured in a run, or usual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.errors import PlanError
from serve_eval.stats.planning import compute_fail_power, compute_margin

if TYPE_CHECKING:
    from serve_eval.workflows.power.measured import Measured

USUAL_FLIP_RATE = 0.034
"""Share of prompts on which two greedy runs of one endpoint disagree, if none was measured."""
USUAL_SIGMA = 50.0
"""Standard deviation of the classic test in points, unless a reference or a task sets another."""

DEFAULT = "the default"
"""The source of a number that nothing else gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerQuestion:
    """The question of a user.

    `total` samples find which drop; a `theta` of the classic rule, or a drop to `detect`, both in
    points, takes how many samples. `power` is the wanted chance of detection. The other fields are
    those of `Assumed`; None has the value that was measured, or the usual one.
    """

    total: int | None = None
    theta: float | None = None
    detect: float | None = None
    power: float = 0.8
    flip_rate: float | None = None
    sigma: float | None = None
    alpha: float = 0.05
    beta: float = 0.2
    margin: float | None = None
    tests: int = 1
    design_effect: float | None = None
    repeats: int = 1

    def check(self, *, from_run: bool) -> None:
        """Raise PlanError if nothing is asked, or for a number that is out of range."""
        if not from_run and self.total is self.theta is self.detect is None:
            raise PlanError(
                "give at least one of --total N, --theta POINTS, --detect POINTS and --from RUN"
            )
        if self.margin is not None and not 0.0 < self.margin < math.inf:
            raise PlanError(f"--margin must be above 0 and finite, in points, not {self.margin:g}")
        if self.total is not None and self.total < 1:
            raise PlanError(f"--total must be 1 or more, not {self.total}")
        if self.repeats < 1:
            raise PlanError(f"--repeats must be 1 or more, not {self.repeats}")
        if self.tests < 1:
            raise PlanError(f"power.tests must be 1 or more, not {self.tests}")
        if self.design_effect is not None and not 1.0 <= self.design_effect < math.inf:
            raise PlanError(f"power.design_effect must be 1 or more, not {self.design_effect:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """The numbers that a plan assumes, and the sources of two of them.

    `sigma` and `margin` are in points; a margin of None is that of the paired rule at n. `power` is
    the wanted chance of detection, `tests` the number of paired tests that Holm corrects. n prompts
    that share groups tell a paired rule as much as n / `design_effect` independent ones, as
    `effect_of` shows. Each side answers each prompt `repeats` times.
    """

    flip_rate: float
    sigma: float
    alpha: float
    beta: float
    power: float
    margin: float | None
    tests: int
    design_effect: float = 1.0
    repeats: int = 1
    effect_of: str | None = None
    sigma_of: str = DEFAULT
    flips_of: str = DEFAULT

    @property
    def flips(self) -> float:
        """The flip rate of one answer a side that has the noise of the repeats' means."""
        return self.flip_rate / self.repeats

    @property
    def proof(self) -> float:
        """The level at which a drop must be proven, at the worst rank of Holm's correction."""
        return self.alpha / self.tests

    def count_independent(self, n: int) -> int:
        """Return the number of independent prompts that tell a paired rule as much as n."""
        return max(1, round(n / self.design_effect))

    def count_needed(self, independent: int) -> int:
        """Return the number of prompts that tell as much as `independent` ones without groups."""
        return math.ceil(independent * self.design_effect)

    def find_margin(self, n: int) -> float:
        """Return the margin of the paired rule with n prompts, in points."""
        if self.margin is not None:
            return self.margin
        return 100.0 * compute_margin(n, self.alpha, self.sigma / 100)

    def fail(self, drop: float, n: int, flip_rate: float, alpha: float) -> float:
        """Return the chance that the paired rule fails a drop, given as a share."""
        margin = self.find_margin(n) / 100
        independent = self.count_independent(n)
        return compute_fail_power(drop, independent, flip_rate, alpha, margin, tests=self.tests)


def assume(asked: PowerQuestion, one: Measured | None) -> Assumed:
    """Return what a plan assumes of a task that was measured, or of any task."""
    sigma, sigma_of = _choose_sigma(asked.sigma, one)
    flip_rate, flips_of = _choose_flip_rate(asked.flip_rate, one)
    effect, effect_of = asked.design_effect, None
    if effect is None:
        effect = 1.0 if one is None else one.design_effect
        effect_of = None if one is None else one.effect_of
    return Assumed(
        flip_rate=flip_rate,
        flips_of=flips_of,
        sigma=sigma,
        sigma_of=sigma_of,
        alpha=asked.alpha,
        beta=asked.beta,
        power=asked.power,
        margin=asked.margin,
        tests=asked.tests,
        repeats=asked.repeats,
        design_effect=effect,
        effect_of=effect_of,
    )


def _choose_sigma(given: float | None, one: Measured | None) -> tuple[float, str]:
    """Return the sigma to plan the classic rule with, and its source.

    The rule judges by the sigma of its reference or task, not by that of the run.
    """
    if given is not None:
        return given, "as given"
    if one is None:
        return USUAL_SIGMA, DEFAULT
    if one.judged_by is not None:
        other = "" if not one.sigma else f"; the measured {one.sigma:.3f} judges nothing"
        return one.judged_by, (
            f"by which the classic rule judged this run: that of its reference{other}"
        )
    if not one.sigma:
        return USUAL_SIGMA, "the default: the run shows no spread"
    return one.sigma, (
        "measured: a reference that is registered from this run sets it; against one without a"
        f" sigma the classic rule judges with {USUAL_SIGMA:g}"
    )


def _choose_flip_rate(given: float | None, one: Measured | None) -> tuple[float, str]:
    """Return the flip rate to plan with, and its source.

    One that was measured counts a flip at least: none in n prompts do not mean that there are none.
    """
    if given is not None:
        return given, "as given"
    if one is None:
        return USUAL_FLIP_RATE, DEFAULT
    if one.flip_rate is None:
        return USUAL_FLIP_RATE, "the default: the run shows no flips"
    least = max(one.flip_rate, 1.0 / one.n)
    seen = "" if least == one.flip_rate else f"; {one.flip_rate:g} counts as one flip"
    return least, f"measured: {one.flips_of}{seen}"
