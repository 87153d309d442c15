"""Do whole runs differ, beyond what their prompts explain? Then a paired test must allow for it.

Prompts are independent given the endpoint only where nothing moves a whole run at once: a replica, a time of day, a
batch size. Such an effect is shared by all prompts of a run, so that the error of a mean shrinks less than their number
says. Cochran's Q over the runs of one side measures it: Q / df is the factor by which the variance of a run's mean
exceeds what its prompts explain. One run a side shows nothing of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.stats.instability import instability

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.pairs import Pairs

ALPHA = 0.05
"""Chance of finding a run effect where there is none."""
MIN_VARIED = 10
"""Prompts whose score varied from which on the distribution of Q is near enough to chi-squared."""


@dataclass(frozen=True, slots=True)
class RunEffect:
    """Cochran's Q of both sides together, with its degrees of freedom and p. `inflation` is the factor on every
    standard error: sqrt(Q / df) where p <= ALPHA, else 1."""

    q: float
    df: int
    p: float
    inflation: float


def run_effect(pairs: Pairs) -> RunEffect | None:
    """Test whether the runs of either side differ as a whole. None where no side has two runs with enough variation."""
    return effect_within(pairs.reference, pairs.candidate)


def effect_within(*sides: ArrayLike) -> RunEffect | None:
    """Test whether the runs of any side, a row each with a column per prompt, differ as a whole.

    None where no side has two runs with enough variation.
    """
    import numpy
    from scipy.special import chdtrc

    q, df = 0.0, 0
    for side in sides:
        runs = numpy.asarray(side, dtype=numpy.float64)
        complete = runs[:, ~numpy.isnan(runs).any(axis=0)]
        if len(runs) < 2 or int((complete != complete[0]).any(axis=0).sum()) < MIN_VARIED:
            continue
        found = instability(complete)
        assert found.cochran_q is not None
        q, df = q + found.cochran_q, df + found.df
    if df == 0:
        return None
    p = float(chdtrc(df, q))
    return RunEffect(q, df, p, math.sqrt(q / df) if p <= ALPHA else 1.0)


def inflated_p(p: float, inflation: float) -> float:
    """p when the standard error is `inflation` times as large; evidence for the hypothesis stays as it is."""
    if inflation == 1.0 or p >= 0.5:
        return p
    from scipy.special import ndtr, ndtri

    return float(ndtr(ndtri(p) / inflation))


def inflated_bound(bound: float, mean: float, inflation: float) -> float:
    """A confidence bound moved away from the mean by the same factor."""
    return mean + inflation * (bound - mean) if math.isfinite(bound) else bound
