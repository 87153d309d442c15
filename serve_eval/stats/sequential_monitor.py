"""Has an endpoint become worse than it was? Asked after every round for ever, with one bound on all
false alarms.

A pool of prompts is asked several times over: the baseline. After that each round asks a random
subset, and bets on how much each answer is worse than the same prompt's answers were. The
hypothesis is that in each round the mean over the whole pool of the chance of a right answer is at
least `null`, given all earlier rounds. Nothing is asked of single prompts: they may differ, be
deterministic, or change places. A round can be bet on in two ways.

Answer by answer. Given all that holds for the round and that its answers share, such as the machine
or the load, they are independent and the hypothesis holds. The subset is drawn without replacement,
so the mean of the product of non-negative numbers over it is at most the power of their mean over
the pool (Maclaurin's inequality for elementary symmetric means): the wealth does not grow on
average. A round that is worse by chance breaks the hypothesis, also where another is better in its
place: the product over answers that are wrong together grows.

One value per round, the mean over the subset: 1 + g (null - mean) / (highest - null), where no
subset can have a mean above `highest`. It is a straight line in the answers, so its expectation
takes only the pool's mean and subsets that hold each prompt equally often (`spread_subset`). The
hypothesis is then about the chance before the round's state is known, and the answers may depend on
one another in any way. No better bet takes as little: each is below such a line. So that the line
may be steep, `highest` is kept low: each subset holds easy and hard prompts in the pool's shares.

All rounds. A bet that began long ago is poor when a change comes late. So one begins at every
round, with a share of the initial wealth that is decided beforehand and sums to 1: the shares begin
as 1 / ln(e + t - 1) - 1 / ln(e + t), about 1 / (t ln^2 t). The sum is a test supermartingale, so
that it reaches 1 / alpha with probability alpha at most, however long the watch lasts (Ville 1939).
It is the form of the e-detectors of Shin, Ramdas and Rinaldo (arXiv 2203.03532) whose weights are
summable, which bounds the chance of any false alarm and not only their frequency.

Differences are betted on instead of scores, which takes away the differences between prompts: any
number known before the round may be taken off a score where its mean over the pool is taken off the
hypothesis (a control variate).

The baseline has a filtration of its own: F_t is all that was answered in passes 1 to t. In pass t
the value bet on is the answer minus the mean m of the same prompt's answers in passes 1 to t - 1,
which F_(t-1) knows, and the hypothesis "the pool's mean chance is at most a" becomes a - mean m.
The answers of a pass are independent given F_(t-1); a product of means is at most the power of
their average; so if the pool's mean chance given F_(t-1) is at most a in every pass, the wealth
against a is a supermartingale. `floor` is the largest a against which it reaches 1 / alpha. It is
above the highest of the passes' mean chances with probability alpha at most: above the mean chance,
where that stays as it is. It assumes independent answers within a pass. One value per round is of
no use here: 80 rounds of 20 do not exclude that one round in ten is all wrong, so that such a floor
lies ten points too low.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.betting import GRID, HALVINGS
from serve_eval.stats.inputs import check_count, check_level

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray


def floor(passes: ArrayLike, alpha: float) -> float:
    """Bound the pool's mean chance of a right answer from below, with probability `alpha` of lying
    too high.

    Rows are the passes of the baseline, columns the prompts; scores lie in 0..1. Against the mean
    chance a, stake g bets min(g, 1 / (1 + a - mean m)) on each value. Where every prompt answers as
    before all values are 0: with n of them behind the first pass the floor lies about (ln(1 /
    alpha) + 2) / n below the mean. 0: nothing is excluded.

    Raises ServeEvalError for fewer than two passes, no prompt, scores outside 0..1 or an alpha that
    is none.
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
    """Choose `asked` of `n` places, evenly spread, by a `start` drawn uniformly from 0..1: a
    systematic sample.

    Each place is chosen with probability asked / n. Where the places are ordered from hard to easy
    prompts, every subset has nearly the pool's share of both. Raises ServeEvalError where more are
    asked than there are, or none.
    """
    check_count("the number of questions", asked, 1)
    if asked > n or not 0.0 <= start < 1.0:
        raise ServeEvalError(
            f"{asked} of {n} places cannot be chosen at {start}", hint="Ask at most all prompts."
        )
    whole = 2**53  # in whole numbers, lest rounding choose a place twice
    offset = int(start * whole)
    return [(k * whole + offset) * n // (asked * whole) for k in range(asked)]


def highest_mean(usual: Sequence[float], asked: int) -> float:
    """Find the greatest mean that 1 - `usual` has over any subset of `spread_subset`, ordered by
    rising `usual`.

    By how much answers can be better than usual, at most. The sum falls as the start rises, so it
    is that at start 0.
    """
    ordered = sorted(usual)
    return (
        math.fsum(1.0 - ordered[place] for place in spread_subset(len(ordered), asked, 0.0)) / asked
    )


def gains(values: ArrayLike, null: ArrayLike, highest: ArrayLike) -> FloatArray:
    """Ln of what a round multiplies the wealth of each stake of GRID by, which bets that the mean
    is below `null`.

    `values`, along the last axis, are at most `highest`: each multiplies by 1 + g (null - value) /
    (highest - null). A single value, the round's mean, is what stays valid where its answers depend
    on one another. Earlier axes are kept; `null` and `highest` may have them. No values: 0. Raises
    ServeEvalError for a null that is not below `highest`.
    """
    import numpy

    least = numpy.asarray(null, dtype=numpy.float64)[..., None, None]
    most = numpy.asarray(highest, dtype=numpy.float64)[..., None, None]
    if not (least < most).all():
        raise ServeEvalError(
            "there is no bet against a mean that cannot be exceeded",
            hint="Allow a larger tolerance.",
        )
    row = numpy.asarray(values, dtype=numpy.float64)
    steps = (least - row[..., None]) / (most - least)
    return numpy.asarray(numpy.log1p(numpy.array(GRID) * steps).sum(axis=-2), dtype=numpy.float64)


def compute_starting_share(k: int) -> float:
    """The share of the initial wealth that begins to bet in round k, counted from 1."""
    check_count("the number of the round", k, 1)
    return compute_waiting_share(k - 1) - compute_waiting_share(k)


def compute_waiting_share(k: int) -> float:
    """The share of the initial wealth that has not begun to bet after round k."""
    return 1.0 / math.log(math.e + k)


def grow(logs: ArrayLike, k: int, gained: ArrayLike) -> FloatArray:
    """Ln of the wealth of each stake after round k, which was `logs` before it (-inf in the first)
    and `gained`.
    """
    import numpy

    return numpy.asarray(
        numpy.logaddexp(logs, math.log(compute_starting_share(k))) + numpy.asarray(gained),
        dtype=numpy.float64,
    )


def log_evidence(logs: ArrayLike, k: int) -> FloatArray:
    """Ln of the whole wealth after k rounds: the mean over the stakes, and what has not begun to
    bet.
    """
    import numpy

    row = numpy.asarray(logs, dtype=numpy.float64)
    mean = numpy.logaddexp.reduce(row, axis=-1) - math.log(len(GRID))
    result: FloatArray = numpy.logaddexp(mean, math.log(compute_waiting_share(k)))
    return result
