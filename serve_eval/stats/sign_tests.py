"""Test by signs whether changes go one way more often than the other.

Without a real drop each changed prompt is equally likely to have changed either way, so the number
that went from right to wrong is binomial with probability 1/2 (McNemar 1947). The mid-p variant
counts half the probability of the observed number, which brings the level close to alpha without
exceeding it (Fagerland, Lydersen, Laake 2013).

Under exchange both signs of a prompt flip together, and the prompts flip independently. The
distribution of the smaller p-value under these joint flips corrects for having looked twice, and it
uses the dependence between the two measures: step 1 of the min-p procedure of Westfall and Young
1993, "Resampling-Based Multiple Testing". Nothing is drawn: given how many prompts moved both
measures, the two numbers of positive signs are independent binomials, so the distribution is a
finite sum and exact for p-values of any size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray


def binomial_tail(successes: int, trials: int, chance: float) -> float:
    """Return the probability of at least this number of successes in independent trials."""
    from scipy.special import bdtrc

    return float(bdtrc(successes - 1, trials, chance)) if successes > 0 else 1.0


@dataclass(frozen=True, slots=True)
class McNemar:
    """One-sided p-values for "the candidate is worse", and the exact two-sided one."""

    p_exact: float
    p_mid: float
    p_exact_two_sided: float


def mcnemar(down: int, up: int) -> McNemar:
    """Return the p-values for `down` prompts from right to wrong and `up` from wrong to right.

    No change at all gives p = 1. p_exact = P(Bin(down + up, 1/2) >= down); p_mid = p_exact -
    P(Bin(down + up, 1/2) = down) / 2, computed as the mean of P(>= down) and P(> down). Raises
    ServeEvalError for negative counts.
    """
    check_count("the number of prompts that became wrong", down)
    check_count("the number of prompts that became right", up)
    changed = down + up
    if changed == 0:
        return McNemar(1.0, 1.0, 1.0)
    from scipy.special import bdtr

    at_least = float(bdtr(up, changed, 0.5))
    more = float(bdtr(up - 1, changed, 0.5)) if up > 0 else 0.0
    return McNemar(
        p_exact=at_least,
        p_mid=(at_least + more) / 2.0,
        p_exact_two_sided=min(1.0, 2.0 * float(bdtr(min(down, up), changed, 0.5))),
    )


Signs = tuple[int, int]
"""The signs of one prompt by the first and by the second measure, each -1, 0 or 1."""
CELLS = 1_000_000  # outcomes held in memory at once


@dataclass(frozen=True, slots=True)
class MinP:
    """One-sided p-values for "positive signs are the more likely ones".

    `p_mid` and `p_exact` are those of the smaller p-value of the two measures. The level of
    `p_exact` never exceeds alpha; `p_mid` counts half the probability of the observed outcome, as
    in McNemar's mid-p. `each` has the mid-p of either measure alone.
    """

    p_mid: float
    p_exact: float
    each: tuple[float, float]


def min_p(counts: Mapping[Signs, int]) -> MinP:
    """Test two signs per prompt together, given the number of prompts for each pair of signs.

    If only one measure ever has a sign, or if both always agree, the result is McNemar's. No sign
    at all gives p = 1. Raises ServeEvalError for signs other than -1, 0 and 1 and for negative
    counts.
    """
    for signs, count in counts.items():
        if not set(signs) <= {-1, 0, 1}:
            raise ServeEvalError(
                f"signs must be two of -1, 0 and 1, not {signs}", hint="count only directions"
            )
        check_count("the number of prompts", count)
    tables = [_mid_p_values(_count_signed(counts, which)) for which in (0, 1)]
    positive = [sum(n for signs, n in counts.items() if signs[which] > 0) for which in (0, 1)]
    each = float(tables[0][positive[0]]), float(tables[1][positive[1]])
    if not any(n for signs, n in counts.items() if signs != (0, 0)):
        return MinP(1.0, 1.0, each)
    least = min(each)
    # The p-values fall as the number of positive signs rises: the first that is small enough
    # decides.
    at_most = _compute_reached(counts, [int((table > least).sum()) for table in tables])
    below = _compute_reached(counts, [int((table >= least).sum()) for table in tables])
    return MinP(p_mid=(at_most + below) / 2.0, p_exact=at_most, each=each)


def _count_signed(counts: Mapping[Signs, int], which: int) -> int:
    """Return the number of prompts with a sign by one measure."""
    return sum(n for signs, n in counts.items() if signs[which] != 0)


def _mid_p_values(n: int) -> FloatArray:
    """Return the mid-p of McNemar's test for 0 to n positive signs of n; 1 for n = 0."""
    import numpy
    from scipy.special import bdtr

    if n == 0:
        return numpy.ones(1)
    left = numpy.arange(n, -1.0, -1.0)
    at_least = bdtr(left, n, 0.5)
    return numpy.asarray((at_least + numpy.append(at_least[1:], 0.0)) / 2.0)


def _compute_reached(counts: Mapping[Signs, int], needed: list[int]) -> float:
    """Return the chance, under joint flips, that a measure reaches its `needed` positive signs.

    The sum runs over the positive signs of the prompts whose two signs are alike, and those of the
    prompts whose signs are opposite. Every term is positive, so that the smallest sum keeps its
    digits.
    """
    import numpy

    alike = counts.get((1, 1), 0) + counts.get((-1, -1), 0)
    opposite = counts.get((1, -1), 0) + counts.get((-1, 1), 0)
    alone = [_count_signed(counts, which) - alike - opposite for which in (0, 1)]
    tails = [_at_least(n) for n in alone]
    k = numpy.arange(opposite + 1)
    weights = _chances(alike), _chances(opposite)
    total = 0.0
    rows = max(1, CELLS // (opposite + 1))
    for start in range(0, alike + 1, rows):
        j = numpy.arange(start, min(start + rows, alike + 1))[:, numpy.newaxis]
        first = tails[0][numpy.clip(needed[0] - j - k, 0, alone[0] + 1)]
        second = tails[1][numpy.clip(needed[1] - j - (opposite - k), 0, alone[1] + 1)]
        either = first + (1.0 - first) * second
        total += float(weights[0][start : start + rows] @ either @ weights[1])
    return min(1.0, total)


def _at_least(n: int) -> FloatArray:
    """Return P(Bin(n, 1/2) >= k) for k = 0 to n + 1."""
    import numpy
    from scipy.special import bdtr

    return (
        numpy.append(bdtr(numpy.arange(n, -1.0, -1.0), n, 0.5), 0.0)
        if n
        else numpy.array([1.0, 0.0])
    )


def _chances(n: int) -> FloatArray:
    """Return P(Bin(n, 1/2) = k) for k = 0 to n."""
    import math

    import numpy
    from scipy.special import gammaln

    k = numpy.arange(n + 1.0)
    return numpy.asarray(
        numpy.exp(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0) - n * math.log(2.0))
    )


SLOWER = 2.0
"""Least factor between times that counts: two ways of serving a model never take the same time."""


class Lateness(NamedTuple):
    """The result of the sign test.

    `longer` of `of` times were more than SLOWER times as long. `p` is that of the exact sign test
    of "at most half of all times are".
    """

    longer: int
    of: int
    p: float


def lateness(times: Iterable[tuple[float, float]]) -> Lateness:
    """Apply the sign test of the median ratio to pairs (usual time, time in question).

    It is exact for any distribution of the times if the pairs are independent. No pair gives p = 1.
    """
    longer = of = 0
    for usual, taken in times:
        of += 1
        longer += taken > SLOWER * usual
    return Lateness(longer, of, mcnemar(longer, of - longer).p_exact)


LEAST_OTHERS = 2
"""Others of a row: of two sources that differ, neither is the odd one."""


class OddOneOut(NamedTuple):
    """Hold the rows with one odd source, those where it is the tested one, and p."""

    rows: int
    own: int
    p: float


def odd_one_out(rows: Iterable[tuple[Hashable, Sequence[Hashable]]]) -> OddOneOut:
    """Test the first value of each row against the others of that row.

    A row counts if all its values but one are equal. If the sources are exchangeable within each
    row, and rows are independent, that one is the tested source with probability 1/k, k being the
    number of sources. p is the tail of the binomial distribution with the largest such probability
    of the rows that count, so it is exact or too large.
    """
    found = [(own, others) for own, others in rows if len(others) >= LEAST_OTHERS]
    odd = [(own, others) for own, others in found if _is_one_odd([own, *others])]
    if not odd:
        return OddOneOut(0, 0, 1.0)
    first = sum(own not in others for own, others in odd)
    chance = max(1 / (1 + len(others)) for _, others in odd)
    return OddOneOut(len(odd), first, binomial_tail(first, len(odd), chance))


def _is_one_odd(values: Sequence[Hashable]) -> bool:
    return sorted(Counter(values).values()) == [1, len(values) - 1]
