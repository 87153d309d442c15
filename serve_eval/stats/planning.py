"""Compute the number of prompts that a verdict needs to detect or exclude an effect.

The verdicts are the classic, the paired and the non-inferiority one. Unit: proportions (0.01 is one
point). `flip_rate` is the A/A flip rate phi, the share of prompts on which two runs of one endpoint
disagree. A regression of x turns x more of them from right to wrong, so phi + x change under a drop
of x.

With N independent pairs of equal answers the score bound excludes a drop of z^2 / (N + z^2) or
more: under a drop of m a pair differs with a chance of m, and z = m sqrt(N / (m (1 - m))). Fewer
changes than none cannot be seen, so that a smaller margin is out of reach for an equal candidate.
Unit: proportions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.classic import classic_test
from serve_eval.stats.finding import MIN_UNITS
from serve_eval.stats.inputs import check_count, check_level, check_margin
from serve_eval.stats.score_bounds import score_z

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from serve_eval.stats.inputs import FloatArray, IntArray

    BoolArray = NDArray[numpy.bool_]


SAW_TEETH = 100  # sizes beyond the first sufficient one that are checked too
FLIP_RATE = 0.05  # share of prompts whose answer changes on a sound endpoint, by default
LEAST_STEP = 1e-5  # a thousandth of a point
MOST = 10_000_000  # prompts beyond which planning gives up


def compute_pairs(drop: float, discordance: float, alpha: float, beta: float) -> float:
    """Return the number of pairs for a paired test to detect `drop` with power 1 - beta.

    `discordance` is the share of pairs that change in total. n = (z_{1-alpha} sqrt(d) + z_{1-beta}
    sqrt(d - x^2))^2 / x^2 (Miettinen 1968; Connor 1987). It is not rounded; the exact test needs 4
    to 14 % more. Raises ServeEvalError for a drop that is not in (0, discordance].
    """
    check_level("alpha", alpha)
    check_level("beta", beta)
    if not 0.0 < drop <= discordance <= 1.0:
        raise ServeEvalError(
            f"a drop of {drop} cannot come from {discordance} changed prompts",
            hint="give both as proportions; the flip rate under the drop includes the drop",
        )
    from scipy.special import ndtri

    z_alpha, z_beta = -float(ndtri(alpha)), -float(ndtri(beta))
    return (
        z_alpha * math.sqrt(discordance) + z_beta * math.sqrt(discordance - drop**2)
    ) ** 2 / drop**2


def classic_power(drop: float, n: int, flip_rate: float, alpha: float, sigma: float = 0.5) -> float:
    """Return the chance that the classic verdict fails a candidate worse by `drop`.

    It is the exact sum. At a drop of 0 it is the real false alarm rate. The verdict is FAIL if more
    than the margin z_{1-alpha} sqrt(2 sigma^2 / n) is lost. The prompts are fixed, so their
    difficulty does not add to the noise.
    """
    discordance = check_discordance(drop, n, flip_rate, alpha)
    most = n * compute_margin(n, alpha, sigma) + 1e-9 * n

    def passes(down: IntArray, changed: IntArray) -> BoolArray:
        result: BoolArray = 2 * down - changed <= most
        return result

    return 1.0 - chance_of_few(n, discordance, (discordance + drop) / 2.0, passes)


def compute_margin(n: int, alpha: float, sigma: float = 0.5) -> float:
    """Return the margin of the classic test, which is the default of the paired rule."""
    return -classic_test(n, 0.0, sigma, alpha, 0.5).threshold


def compute_paired_power(
    drop: float, n: int, flip_rate: float, alpha: float, *, mid_p: bool = True
) -> float:
    """Return the chance that McNemar's test proves a drop of `drop`.

    It is the exact sum over all numbers of changed prompts. At a drop of 0 it is the exact level of
    the test. `mid_p` False: the exact instead of the mid-p variant.
    """
    discordance = check_discordance(drop, n, flip_rate, alpha)

    return 1.0 - chance_of_few(
        n,
        discordance,
        (discordance + drop) / 2.0,
        lambda down, changed: ~_prove(down, changed, alpha, mid_p=mid_p),
    )


def compute_fail_power(
    drop: float,
    n: int,
    flip_rate: float,
    alpha: float,
    margin: float | None = None,
    *,
    sigma: float = 0.5,
    tests: int = 1,
) -> float:
    """Return the chance that the verdict of the paired rule is FAIL if the true drop is `drop`.

    It is the exact sum. FAIL needs a drop that is proven at alpha / `tests`, and a drop of `margin`
    that is not excluded at alpha; see `stats.finding`. None takes the margin of the classic test.
    Fewer prompts than MIN_UNITS are never judged.
    """
    discordance = check_discordance(drop, n, flip_rate, alpha)
    matters = compute_margin(n, alpha, sigma) if margin is None else margin
    if n < MIN_UNITS or matters > 1.0:
        return 0.0
    from scipy.special import ndtri

    needed = -float(ndtri(alpha))

    def passes(down: IntArray, changed: IntArray) -> BoolArray:
        excluded = score_z(down, changed - down, n, -matters) > needed
        result: BoolArray = excluded | ~_prove(down, changed, alpha / tests)
        return result

    return 1.0 - chance_of_few(n, discordance, (discordance + drop) / 2.0, passes)


def _prove(down: IntArray, changed: IntArray, alpha: float, *, mid_p: bool = True) -> BoolArray:
    """Return True where McNemar's test proves a drop."""
    from scipy.special import bdtr

    up = changed - down
    p = bdtr(up, changed, 0.5)
    if mid_p:
        p = (p + (up > 0) * bdtr(abs(up - 1), changed, 0.5)) / 2.0
    result: BoolArray = (changed > 0) & (p <= alpha)
    return result


def noninferiority_power(
    margin: float, n: int, flip_rate: float, alpha: float, *, drop: float = 0.0
) -> float:
    """Return the chance that Tango's test excludes a drop of `margin` if the true drop is `drop`.

    It is the exact sum. At drop = margin it is the exact level of the test.
    """
    _check_margin(margin)
    discordance = check_discordance(drop, n, flip_rate, alpha)
    from scipy.special import ndtri

    needed = -float(ndtri(alpha))

    def exclude(down: IntArray, changed: IntArray) -> BoolArray:
        result: BoolArray = score_z(down, changed - down, n, -margin) > needed
        return result

    return chance_of_few(n, discordance, (discordance + drop) / 2.0, exclude)


def num_pairs_for(
    drop: float, flip_rate: float, alpha: float, beta: float, *, mid_p: bool = True
) -> int:
    """Return the smallest number of prompts with which the paired test proves a drop of `drop`.

    The power is 1 - beta or more.
    """
    start = compute_pairs(drop, min(1.0, flip_rate + drop), alpha, beta)
    return _smallest(
        lambda n: compute_paired_power(drop, n, flip_rate, alpha, mid_p=mid_p), 1.0 - beta, start
    )


def num_failing_for(
    drop: float,
    flip_rate: float,
    alpha: float,
    beta: float,
    margin: float | None,
    *,
    sigma: float,
    tests: int,
) -> int | None:
    """Return the smallest number of prompts with which the paired rule fails a drop of `drop`.

    The power is 1 - beta or more. None if the margin is larger than the drop: more prompts then
    exclude the margin instead.
    """
    if margin is not None and margin > drop:
        return None
    start = compute_pairs(drop, min(1.0, flip_rate + drop), alpha, beta)
    return _smallest(
        lambda n: compute_fail_power(drop, n, flip_rate, alpha, margin, sigma=sigma, tests=tests),
        1.0 - beta,
        start,
    )


def find_least_drop(
    n: int,
    flip_rate: float,
    alpha: float,
    beta: float,
    power: Callable[[float, int, float, float], float] = compute_paired_power,
) -> float | None:
    """Return the least drop that the paired test proves with n prompts and power 1 - beta.

    It is right to a thousandth of a point and rounded up. None if no drop is proven so often.
    `power(drop, n, flip_rate, alpha)` may be that of another event than a proof.
    """

    def proves(drop: float) -> bool:
        return power(drop, n, flip_rate, alpha) >= 1.0 - beta

    most = 1.0 - flip_rate
    low, high = 0.0, min(most, 1.0 / n)
    while not proves(high):
        if high == most:
            return None
        low, high = high, min(most, 2.0 * high)
    while high - low > LEAST_STEP:
        middle = (low + high) / 2.0
        low, high = (low, middle) if proves(middle) else (middle, high)
    return high


def num_noninferior_for(margin: float, flip_rate: float, alpha: float, beta: float) -> int:
    """Return the number of prompts that shows an equally good candidate to be non-inferior.

    The power is 1 - beta or more.
    """
    check_level("alpha", alpha)
    check_level("beta", beta)
    _check_margin(margin)
    from scipy.special import ndtri

    start = float(ndtri(alpha) + ndtri(beta)) ** 2 * flip_rate / margin**2
    return _smallest(lambda n: noninferiority_power(margin, n, flip_rate, alpha), 1.0 - beta, start)


def _check_margin(margin: float) -> None:
    if not 0.0 < margin < 1.0:
        raise ServeEvalError(
            f"the margin must lie strictly between 0 and 1, not {margin}",
            hint="give a proportion: 0.01 is one point",
        )


def _smallest(power: Callable[[int], float], wanted: float, start: float) -> int:
    """Return the smallest n with a power of at least `wanted` that holds for the next sizes too.

    It holds for the next `SAW_TEETH` sizes. The power of a discrete test is a saw-tooth in n: the
    first size that reaches it is often undone by the next ones.
    """
    high = max(4, math.ceil(min(start, MOST)))
    while power(high) < wanted:
        high *= 2
        if high > MOST:
            raise ServeEvalError(
                f"more than {MOST} prompts would be needed",
                hint="plan for a larger effect or a lower power",
            )
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle) >= wanted else (middle, high)
    below = [n for n in range(high, high + SAW_TEETH) if power(n) < wanted]
    return below[-1] + 1 if below else high


TAIL = 1e-10  # tail probability of the number of changed prompts that exact sums leave out


def check_discordance(drop: float, n: int, flip_rate: float, alpha: float) -> float:
    """Return the share of prompts that change under the drop, after a check of all parameters."""
    check_count("the number of prompts", n, 1)
    check_level("alpha", alpha)
    if not (drop >= 0.0 and flip_rate >= 0.0 and drop + flip_rate <= 1.0):
        raise ServeEvalError(
            f"a drop of {drop} and a flip rate of {flip_rate} are not proportions of one set of"
            " prompts",
            hint="give both as proportions: 0.01 is one point",
        )
    return drop + flip_rate


def chance_of_few(
    n: int,
    discordance: float,
    down_share: float,
    accepted: Callable[[IntArray, IntArray], BoolArray],
) -> float:
    """Return P(accepted(down, changed)) if `accepted` holds up to some number of prompts down.

    changed ~ Bin(n, discordance), down given changed ~ Bin(changed, down_share / discordance). For
    every number of changed prompts the largest accepted number of prompts down is found by halving,
    all together.
    """
    import numpy
    from scipy.special import bdtr, bdtrik

    if discordance == 0.0:
        none = numpy.zeros(1, dtype=numpy.int64)
        return float(accepted(none, none)[0])
    if discordance < 1.0:
        ends = bdtrik(numpy.array([TAIL, 1.0 - TAIL]), float(n), discordance)
        first, last = max(0, math.floor(ends[0]) - 1), min(n, math.ceil(ends[1]) + 1)
    else:
        first = last = n
    changed = numpy.arange(first, last + 1)
    below: FloatArray = bdtr(changed, n, discordance)
    chance = numpy.diff(below, prepend=float(bdtr(first - 1, n, discordance)) if first else 0.0)
    # Accepted at low (or -1: never), open up to high.
    low, high = numpy.full(len(changed), -1), changed.copy()
    while (low < high).any():
        middle = (low + high + 1) // 2
        yes = accepted(middle, changed)
        low, high = numpy.where(yes, middle, low), numpy.where(yes, high, middle - 1)
    within = numpy.where(
        low < 0, 0.0, bdtr(numpy.maximum(low, 0), changed, min(1.0, down_share / discordance))
    )
    return float(chance @ within / chance.sum())


ROUNDING = 1e-9
"""Share by which rounding may move a number of pairs that is just not enough."""


def least_excluded(pairs: int, alpha: float) -> float:
    """Return the drop that `pairs` of equal answers just do not exclude at level alpha."""
    check_count("the number of pairs", pairs, 1)
    squared = _square_z(alpha)
    return squared / (pairs + squared)


def num_pairs_to_exclude(margin: float, alpha: float) -> int:
    """Return the least number of pairs of equal answers that exclude a drop of `margin`."""
    check_margin(margin)
    squared = _square_z(alpha)
    return max(1, math.floor(squared * (1.0 - margin) / margin * (1.0 + ROUNDING)) + 1)


def _square_z(alpha: float) -> float:
    check_level("alpha", alpha)
    from scipy.special import ndtri

    return float(ndtri(alpha)) ** 2
