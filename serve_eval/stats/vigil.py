"""Has an endpoint become worse than it was? Asked after every round for ever, with one bound on all false alarms.

A pool of prompts is asked several times over: the baseline. After that each round asks a random subset, and bets on how
much each answer is worse than the same prompt's answers were. The hypothesis is that in each round the mean over the
whole pool of the chance of a right answer is at least `null`, given all earlier rounds and whatever else holds for that
round. Nothing is asked of single prompts: they may differ, be deterministic, or change places.

One round. The subset is drawn without replacement, so the mean of the product of non-negative numbers over it is at
most the power of their mean over the pool (Maclaurin's inequality for elementary symmetric means). Under the hypothesis
the wealth therefore does not grow on average. That takes answers of one round that are independent, given the round.

All rounds. A bet that began long ago is poor when a change comes late. So one begins at every round, with a share of
the initial wealth that is decided beforehand and sums to 1: the shares begin as 1 / ln(e + t - 1) - 1 / ln(e + t),
about 1 / (t ln^2 t). The sum is a test supermartingale, so that it reaches 1 / alpha with probability alpha at most,
however long the watch lasts (Ville 1939). It is the form of the e-detectors of Shin, Ramdas and Rinaldo (arXiv
2203.03532) whose weights are summable, which bounds the chance of any false alarm and not only their frequency.

Differences are betted on instead of scores, which takes away the differences between prompts: any number known before
the round may be taken off a score where its mean over the pool is taken off the hypothesis (a control variate).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.betting import GRID, mean_lower_bound
from serve_eval.stats.inputs import check_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray


def floor(first: ArrayLike, later: ArrayLike, alpha: float) -> float:
    """A number that the pool's mean chance of a right answer, on average over the `later` passes of the baseline, is
    below with probability `alpha` at most. Scores lie in 0..1; `first` has one per prompt, `later` a row per pass.

    It bets on later minus first, which is 0 for every prompt that answers as before: with n such values and no change
    among them the floor lies about (ln(1 / alpha) + 2) / n below the mean.
    """
    import numpy

    start = numpy.asarray(first, dtype=numpy.float64)
    changes = numpy.asarray(later, dtype=numpy.float64) - start
    return float(start.mean()) + mean_lower_bound(changes.ravel(), alpha)


def gains(values: ArrayLike, null: ArrayLike, highest: float) -> FloatArray:
    """ln of what a round multiplies the wealth of each stake of GRID by, which bets that the mean is below `null`.

    `values`, along the last axis, are at most `highest`: each multiplies by 1 + g (null - value) / (highest - null).
    Earlier axes are kept, and `null` may have them. No values: 0. Raises ServeEvalError for a null that is not below
    `highest`.
    """
    import numpy

    least = numpy.asarray(null, dtype=numpy.float64)[..., None, None]
    if not (least < highest).all():
        raise ServeEvalError(f"there is no bet against a mean of {highest} or more", hint="Allow a larger tolerance.")
    row = numpy.asarray(values, dtype=numpy.float64)
    steps = (least - row[..., None]) / (highest - least)
    return numpy.asarray(numpy.log1p(numpy.array(GRID) * steps).sum(axis=-2), dtype=numpy.float64)


def beginning(t: int) -> float:
    """The share of the initial wealth that begins to bet in round t, counted from 1."""
    check_count("the number of the round", t, 1)
    return kept(t - 1) - kept(t)


def kept(t: int) -> float:
    """The share of the initial wealth that has not begun to bet after round t."""
    return 1.0 / math.log(math.e + t)


def grown(logs: ArrayLike, t: int, gained: ArrayLike) -> FloatArray:
    """ln of the wealth of each stake after round t, which was `logs` before it (-inf in the first) and `gained`."""
    import numpy

    return numpy.asarray(numpy.logaddexp(logs, math.log(beginning(t))) + numpy.asarray(gained), dtype=numpy.float64)


def log_evidence(logs: ArrayLike, t: int) -> FloatArray:
    """ln of the whole wealth after t rounds: the mean over the stakes, and what has not begun to bet."""
    import numpy

    row = numpy.asarray(logs, dtype=numpy.float64)
    mean = numpy.logaddexp.reduce(row, axis=-1) - math.log(len(GRID))
    result: FloatArray = numpy.logaddexp(mean, math.log(kept(t)))
    return result
