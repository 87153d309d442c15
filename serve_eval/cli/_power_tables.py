"""Write the tables of `serve-eval power`: sizes by n, the size for theta, and each rule's power.

Each column says which event it is the chance of. The sums are exact for right/wrong scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

DROPS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Drops in points for which the power is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The numbers that a plan assumes.

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

    @property
    def flips(self) -> float:
        """The flip rate of one answer a side that has the noise of the repeats' means."""
        return self.flip_rate / self.repeats

    def count_independent(self, n: int) -> int:
        """Return the number of independent prompts that tell a paired rule as much as n."""
        return max(1, round(n / self.design_effect))

    def count_needed(self, independent: int) -> int:
        """Return the number of prompts that tell as much as `independent` ones without groups."""
        return math.ceil(independent * self.design_effect)

    @property
    def proof(self) -> float:
        """The level at which a drop must be proven, at the worst rank of Holm's correction."""
        return self.alpha / self.tests

    def find_margin(self, n: int) -> float:
        """Return the margin of the paired rule with n prompts, in points."""
        from serve_eval.stats.planning import compute_margin

        if self.margin is not None:
            return self.margin
        return 100.0 * compute_margin(n, self.alpha, self.sigma / 100)

    def fail(self, drop: float, n: int, flip_rate: float, alpha: float) -> float:
        """Return the chance that the paired rule fails a drop, given as a share."""
        from serve_eval.stats.planning import compute_fail_power

        margin = self.find_margin(n) / 100
        independent = self.count_independent(n)
        return compute_fail_power(drop, independent, flip_rate, alpha, margin, tests=self.tests)

    def say_margin(self, n: int) -> str:
        """Return the margin of the paired rule with n prompts as messages name it."""
        whose = "the rule's default at" if self.margin is None else "--margin, with"
        return f"a margin of {self.find_margin(n):.4g} points, {whose} {n} samples"


def list_sizes(total: int, planned: Planned) -> list[str]:
    """Return the table by n, with the least drops that the paired rule proves and fails."""
    from serve_eval.stats.classic import power_table
    from serve_eval.stats.planning import find_least_drop

    rate, beta = planned.flips, 1.0 - planned.power
    lines = [
        f"{'n':>8}  {'theta':>12}  {'threshold - reference':>22}  {'paired drop':>11}"
        f"  {'paired FAIL':>11}"
    ]
    for n, test in power_table(total, planned.sigma, planned.alpha, planned.beta):
        proven = find_least_drop(planned.count_independent(n), rate, planned.proof, beta)
        failed = find_least_drop(n, rate, planned.alpha, beta, planned.fail)
        shown = ("none" if one is None else f"{100 * one:.2f}" for one in (proven, failed))
        least = "".join(f"  {one:>11}" for one in shown)
        lines.append(f"{n:>8}  {test.theta:>12.6f}  {test.threshold:>22.6f}{least}")
    margin = "the rule's default at n" if planned.margin is None else f"{planned.margin:g} points"
    return [
        *lines,
        "paired drop, paired FAIL: the least drop that the paired rule proves, and fails,",
        f"  with a probability of {planned.power:g} at a flip rate of {planned.flip_rate:g}",
        "  FAIL: the drop is proven, and one of the margin is not excluded;",
        f"  margin: {margin}",
        *_say_tests(planned),
        *_say_design_effect(planned),
        *_say_repeats(planned),
    ]


def find_size(theta: float, planned: Planned) -> list[str]:
    """Return the smallest n for a theta, with its row of the table."""
    from serve_eval.stats.classic import num_samples_for, power_table

    sigma, alpha, beta = planned.sigma, planned.alpha, planned.beta
    n = num_samples_for(theta, sigma, alpha, beta)
    row = next(size for size, _ in power_table(64 * n, sigma, alpha, beta) if size >= n)
    return [
        f"theta {theta:g}: {n} samples (sigma {sigma:g}, alpha {alpha:g}, beta {beta:g}); row of"
        f" the table: {row}"
    ]


def list_rules(drop: float, planned: Planned, per_second: float | None) -> list[str]:
    """Return the samples that each rule needs for a drop, and the power with those of the proof."""
    from serve_eval.stats.finding import MIN_UNITS
    from serve_eval.stats.planning import num_pairs_for

    n = num_pairs_for(drop / 100, planned.flips, planned.proof, 1.0 - planned.power)
    n = planned.count_needed(max(n, MIN_UNITS))
    lines = [
        f"a drop of {drop:g} points with a probability of {planned.power:g}, alpha"
        f" {planned.alpha:g}, flip rate {planned.flip_rate:g}"
    ]
    for rule, size, what in _list_needed(drop, n, planned):
        time = ""
        if per_second is not None:
            time = f"{'-':>8}  " if size is None else f"{size / per_second:>8.0f} s"
        shown = f"{'-':>8}        " if size is None else f"{size:>8} samples"
        lines.append(f"  {rule:14} {shown}{time}  {what}")
    if per_second is not None:
        lines.append(f"  times at the measured throughput of {per_second:.1f} samples per second")
    said = [*_say_tests(planned), *_say_design_effect(planned), *_say_repeats(planned)]
    return [*lines, *said, "", *_list_power(drop, n, planned)]


def _list_needed(drop: float, n: int, planned: Planned) -> Iterator[tuple[str, int | None, str]]:
    """Yield a rule, the samples that it needs and what these do."""
    from serve_eval.stats.classic import num_samples_for
    from serve_eval.stats.finding import MIN_UNITS
    from serve_eval.stats.planning import num_failing_for, num_noninferior_for

    rate, alpha, beta, share = planned.flips, planned.alpha, 1.0 - planned.power, drop / 100
    yield (
        "classic",
        num_samples_for(drop, planned.sigma, alpha, beta),
        "theta, each side on its own prompts",
    )
    yield "paired", n, "to prove the drop"
    margin = None if planned.margin is None else planned.margin / 100
    fails = num_failing_for(
        share, rate, alpha, beta, margin, sigma=planned.sigma / 100, tests=planned.tests
    )
    if fails is None:
        what = f"to FAIL: more exclude {planned.margin:g} points"
        yield "paired FAIL", None, what
    else:
        fails = planned.count_needed(fails)
        yield "paired FAIL", fails, f"to FAIL at {planned.say_margin(fails).partition(',')[0]}"
    pairs = num_noninferior_for(share, planned.flip_rate, alpha, beta)
    needed = planned.count_needed(max(math.ceil(pairs / planned.repeats), MIN_UNITS))
    yield "noninferiority", needed, "to exclude it if there is none"


def _list_power(drop: float, n: int, planned: Planned) -> list[str]:
    """Return the power by drop with n samples."""
    from serve_eval.stats.planning import classic_power, compute_paired_power

    rate, alpha = planned.flips, planned.alpha
    lines = [
        f"power with the {n} samples of the paired proof",
        f"{'drop':>8}  {'classic FAIL':>12}  {'paired proven':>13}  {'paired FAIL':>11}",
    ]
    for points in sorted({*DROPS, drop}):
        share = points / 100
        if share + rate > 1.0:
            continue
        classic = classic_power(share, n, rate, alpha, planned.sigma / 100)
        proven = compute_paired_power(share, planned.count_independent(n), rate, planned.proof)
        failed = planned.fail(share, n, rate, alpha)
        lines.append(f"{points:>8g}  {classic:>12.3f}  {proven:>13.3f}  {failed:>11.3f}")
    return [
        *lines,
        "paired FAIL: the drop is proven, and one of the margin is not excluded;",
        f"  {planned.say_margin(n)}",
        "  Other proven drops pass with the warning small_drop.",
    ]


def _say_design_effect(planned: Planned) -> list[str]:
    if planned.design_effect == 1.0:
        return []
    whose = "" if planned.effect_of is None else f", {planned.effect_of}"
    return [
        f"design effect {planned.design_effect:.3g}{whose}: prompts share groups, and the paired"
        " rules",
        "  need that many times the samples of independent prompts",
    ]


def _say_tests(planned: Planned) -> list[str]:
    if planned.tests == 1:
        return []
    return [
        f"proofs at alpha / {planned.tests} = {planned.proof:g}: Holm's bound for the worst rank"
        f" of {planned.tests} tests;",
        "  other ranks have more power",
    ]


def _say_repeats(planned: Planned) -> list[str]:
    if planned.repeats == 1:
        return []
    return [
        f"{planned.repeats} answers to each prompt on both sides (about: sums of one each):",
        "  proven: no build of equal accuracy explains the drop;",
        "    its noise is that of the prompts and of the answers",
        "  excluded: a drop on these prompts; its noise is that of the answers alone,",
        f"    so that {planned.repeats} answers to a prompt count as {planned.repeats} prompts",
    ]
