"""Bet against a hypothesis on a mean, once or after every round.

The evidence is valid for sparse scores and for any number of looks. A gambler stakes a share of the
wealth on every value against "the mean is at most `null`". Under that hypothesis the wealth does
not grow on average, so it reaches 1 / alpha with probability at most alpha (Ville 1939). Source:
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", arXiv
2010.09686. The stakes are a fixed grid; their wealths are averaged. Values are in [-1, 1].

Here the number of values is fixed and their order does not matter; `early_stop` bets sample by
sample. The bound also holds for prompts with different true means, since a product of means is at
most the power of their average.

A pool of prompts is asked several times: the baseline. After that each round asks a random subset,
and bets on how much worse each answer is than earlier answers to the same prompt. The hypothesis is
that in each round the mean over the whole pool of the chance of a right answer is at least `null`,
given all earlier rounds. Nothing is assumed about single prompts: they may differ, be
deterministic, or change places. There are two ways to bet on a round.

Answer by answer. Given the state of the round that its answers share, such as the machine or the
load, they are independent and the hypothesis holds. The subset is drawn without replacement, so the
mean of the product of non-negative numbers over it is at most the power of their mean over the pool
(Maclaurin's inequality for elementary symmetric means): the wealth does not grow on average. A
round that is worse by chance breaks the hypothesis, even if another round is better in its place:
the product over answers that are wrong together grows.

One value per round, the mean over the subset: 1 + g (null - mean) / (highest - null), where no
subset can have a mean above `highest`. It is a straight line in the answers, so its expectation
needs only the pool's mean and subsets that contain each prompt equally often (`spread_subset`). The
hypothesis is then about the chance before the round's state is known, and the answers may depend on
one another in any way. No better bet needs as few assumptions: each is below such a line. For a
steep line, `highest` is kept low: each subset contains easy and hard prompts in the pool's shares.

All rounds. A bet that began long ago is poor when a change comes late. So one begins at every
round, with a share of the initial wealth that is fixed in advance and sums to 1: the shares begin
as 1 / ln(e + t - 1) - 1 / ln(e + t), about 1 / (t ln^2 t). The sum is a test supermartingale, so it
reaches 1 / alpha with probability at most alpha over an unlimited time (Ville 1939). It is the form
of the e-detectors of Shin, Ramdas and Rinaldo (arXiv 2203.03532) whose weights are summable, which
bounds the chance of any false alarm, not only their frequency.

The bets are on differences instead of scores, which removes the differences between prompts: any
number known before the round may be subtracted from a score if its mean over the pool is subtracted
from the hypothesis (a control variate).

The baseline has a filtration of its own: F_t is all that was answered in passes 1 to t. In pass t
the value bet on is the answer minus the mean m of the same prompt's answers in passes 1 to t - 1,
which F_(t-1) knows, and the hypothesis "the pool's mean chance is at most a" becomes a - mean m.
The answers of a pass are independent given F_(t-1); a product of means is at most the power of
their average; so if the pool's mean chance given F_(t-1) is at most a in every pass, the wealth
against a is a supermartingale. `floor` is the largest a against which it reaches 1 / alpha. It is
above the highest of the passes' mean chances with probability at most alpha: above the mean chance
if that is constant. It assumes independent answers within a pass. One value per round does not help
here: 80 rounds of 20 do not exclude that one round in ten is all wrong, so that such a floor is ten
points too low.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count, check_level, float_row

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray


# Shares of the largest stake that cannot lose more than everything.
GRID = (0.02, 0.05, 0.1, 0.2, 0.35, 0.55, 0.8, 0.97)
HALVINGS = 50


def log_wealth(values: ArrayLike, null: float) -> float:
    """Return ln of the mean over stakes g of prod (1 + g (x - null) / (null + 1)).

    It is infinite if the hypothesis is impossible.
    """
    import numpy

    row = float_row("the values", values)
    if numpy.abs(row).max() > 1.0:
        raise ServeEvalError(
            "a value lies outside -1..1",
            hint="divide differences by the width of the metric's range",
        )
    distinct, counts = numpy.unique(row, return_counts=True)
    return _log_wealth(distinct, counts, null)


def mean_lower_bound(values: ArrayLike, alpha: float) -> float:
    """Return the lower 1 - alpha bound of the mean.

    It is the largest `null` against which the wealth reaches 1 / alpha.
    """
    import numpy

    check_level("alpha", alpha)
    row = float_row("the values", values)
    log_wealth(row, 0.0)  # checks the range
    distinct, counts = numpy.unique(row, return_counts=True)
    low, high = -1.0, float(row.mean())
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if _log_wealth(distinct, counts, middle) >= -math.log(alpha):
            low = middle
        else:
            high = middle
    return low


def _log_wealth(distinct: FloatArray, counts: IntArray, null: float) -> float:
    import numpy

    if null >= 1.0:
        return 0.0  # no bet: the hypothesis allows every value
    if null <= -1.0:
        return math.inf if float(distinct.max()) > -1.0 else 0.0
    growth = (
        numpy.log1p(numpy.multiply.outer(numpy.array(GRID), (distinct - null) / (null + 1.0)))
        @ counts
    )
    top = float(growth.max())
    return top + math.log(float(numpy.exp(growth - top).mean()))


def floor(passes: ArrayLike, alpha: float) -> float:
    """Return a lower bound of the pool's mean chance of a right answer.

    It is too high with probability at most `alpha`. Rows are the passes of the baseline, columns
    the prompts; scores are in 0..1. Against the mean chance a, stake g bets min(g, 1 / (1 + a -
    mean m)) on each value. If every prompt answers as before, all values are 0: with n of them
    after the first pass the floor is about (ln(1 / alpha) + 2) / n below the mean. 0: nothing is
    excluded.

    Raises ServeEvalError for fewer than two passes, no prompt, scores outside 0..1 or an invalid
    alpha.
    """
    import numpy

    check_level("alpha", alpha)
    scores = numpy.asarray(passes, dtype=numpy.float64)
    if scores.ndim != 2 or len(scores) < 2 or scores.shape[1] == 0:
        raise ServeEvalError(
            "a floor needs two or more passes of the same prompts", hint="Ask each prompt again."
        )
    if not ((scores >= 0.0) & (scores <= 1.0)).all():
        raise ServeEvalError(
            "a score lies outside 0..1", hint="Divide scores by the range of the metric."
        )
    before = numpy.cumsum(scores[:-1], axis=0) / numpy.arange(1, len(scores))[:, None]
    values, means, counts = [], [], []
    for row, known in zip(scores[1:] - before, before.mean(axis=1), strict=True):
        distinct, count = numpy.unique(numpy.round(row, 12), return_counts=True)
        values.append(distinct)
        means.append(numpy.full(len(distinct), known))
        counts.append(count)
    value, mean, many = (numpy.concatenate(parts) for parts in (values, means, counts))
    stakes = numpy.array(GRID)[:, None]
    low, high = 0.0, float(scores[1:].mean())
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        null = middle - mean
        steps = numpy.minimum(stakes, 1.0 / (1.0 + null)) * (value - null)
        with numpy.errstate(divide="ignore"):  # ln 0: a stake that has lost everything
            growth = numpy.log1p(numpy.maximum(steps, -1.0)) @ many
        if float(numpy.logaddexp.reduce(growth)) - math.log(len(GRID)) >= -math.log(alpha):
            low = middle
        else:
            high = middle
    return low


def spread_subset(n: int, asked: int, start: float) -> list[int]:
    """Return `asked` of `n` places, evenly spread: a systematic sample.

    `start` is drawn uniformly from 0..1. Each place is chosen with probability asked / n. If the
    places are ordered from hard to easy prompts, every subset has nearly the pool's share of both.
    Raises ServeEvalError if more places are asked for than exist, or none.
    """
    check_count("the number of questions", asked, 1)
    if asked > n or not 0.0 <= start < 1.0:
        raise ServeEvalError(
            f"{asked} of {n} places cannot be chosen at {start}", hint="Ask at most all prompts."
        )
    whole = 2**53  # whole numbers, so that rounding never chooses a place twice
    offset = int(start * whole)
    return [(k * whole + offset) * n // (asked * whole) for k in range(asked)]


def highest_mean(usual: Sequence[float], asked: int) -> float:
    """Return the greatest mean of 1 - `usual` over any subset of `spread_subset`.

    This is the most by which answers can be better than usual. The prompts are ordered by rising
    `usual`; the sum falls as the start rises, so the greatest mean is that at start 0.
    """
    ordered = sorted(usual)
    return (
        math.fsum(1.0 - ordered[place] for place in spread_subset(len(ordered), asked, 0.0)) / asked
    )


def gains(values: ArrayLike, null: ArrayLike, highest: ArrayLike) -> FloatArray:
    """Return ln of the factor by which a round multiplies the wealth of each stake of GRID.

    The bet is that the mean is below `null`. `values`, along the last axis, are at most `highest`:
    each multiplies by 1 + g (null - value) / (highest - null). A single value, the round's mean,
    remains valid if the answers depend on one another. Earlier axes are kept; `null` and `highest`
    may have them. No values: 0. Raises ServeEvalError for a null that is not below `highest`.
    """
    import numpy

    least = numpy.asarray(null, dtype=numpy.float64)[..., None, None]
    most = numpy.asarray(highest, dtype=numpy.float64)[..., None, None]
    if not (least < most).all():
        raise ServeEvalError(
            "a bet needs a mean that can be exceeded",
            hint="Allow a larger tolerance.",
        )
    row = numpy.asarray(values, dtype=numpy.float64)
    steps = (least - row[..., None]) / (most - least)
    return numpy.asarray(numpy.log1p(numpy.array(GRID) * steps).sum(axis=-2), dtype=numpy.float64)


def compute_starting_share(k: int) -> float:
    """Return the share of the initial wealth that begins to bet in round k, counted from 1."""
    check_count("the number of the round", k, 1)
    return compute_waiting_share(k - 1) - compute_waiting_share(k)


def compute_waiting_share(k: int) -> float:
    """Return the share of the initial wealth that has not begun to bet after round k."""
    return 1.0 / math.log(math.e + k)


def grow(logs: ArrayLike, k: int, gained: ArrayLike) -> FloatArray:
    """Return ln of the wealth of each stake after round k.

    It was `logs` before the round (-inf in the first) and `gained` in it.
    """
    import numpy

    return numpy.asarray(
        numpy.logaddexp(logs, math.log(compute_starting_share(k))) + numpy.asarray(gained),
        dtype=numpy.float64,
    )


def log_evidence(logs: ArrayLike, k: int) -> FloatArray:
    """Return ln of the whole wealth after k rounds.

    It is the mean over the stakes, and the share that has not begun to bet.
    """
    import numpy

    row = numpy.asarray(logs, dtype=numpy.float64)
    mean = numpy.logaddexp.reduce(row, axis=-1) - math.log(len(GRID))
    result: FloatArray = numpy.logaddexp(mean, math.log(compute_waiting_share(k)))
    return result
