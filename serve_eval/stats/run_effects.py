"""Detect differences between whole runs that their prompts do not explain.

Paired tests allow for them. Prompts are independent given the endpoint only if nothing affects a
whole run at once: a replica, a time of day, a batch size. All prompts of a run share such an
effect, so the error of a mean shrinks less than the number of prompts suggests. Cochran's Q over
the runs of one side measures it: Q / df is the factor by which the variance of a run's mean exceeds
what its prompts explain. A single run per side cannot show it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from serve_eval.stats.instability import instability
from serve_eval.stats.pairs import Pairs, RunEffect

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray

ALPHA = 0.05
"""Chance of finding a run effect if there is none."""
MIN_VARIED = 10
"""Least number of prompts with varying scores for which the distribution of Q is near enough to
chi-squared."""


def run_effect(pairs: Pairs) -> RunEffect | None:
    """Test whether the runs of either side differ as a whole.

    Of several effects it returns the one that inflates most. Each side is tested on its own, and
    the reference also on all the prompts that it was registered with (`pairs.reference_effect`),
    since a subset shows less. None if no side has two runs that vary enough.
    """
    weights = pairs.weights if pairs.weighted else None
    own = [effect_of(runs, weights, pairs.clusters) for runs in (pairs.reference, pairs.candidate)]
    found = [effect for effect in (pairs.reference_effect, *own) if effect is not None]
    return max(found, key=lambda effect: effect.inflation, default=None)


def effect_of(
    scores: ArrayLike, weights: FloatArray | None = None, clusters: IntArray | None = None
) -> RunEffect | None:
    """Test whether runs, a row each with a column per prompt, differ as a whole.

    Prompts of one cluster count as one. None for a single run, and if fewer than MIN_VARIED prompts
    varied.
    """
    import numpy
    from scipy.special import chdtrc

    from serve_eval.stats.paired_t import unit_sums

    runs = numpy.asarray(scores, dtype=numpy.float64)
    known = ~numpy.isnan(runs).any(axis=0)
    complete = runs[:, known] if weights is None else runs[:, known] * weights[known]
    if clusters is not None:
        codes = numpy.unique(clusters[known], return_inverse=True)[1]
        complete = numpy.stack([unit_sums(row, codes) for row in complete])
    if len(runs) < 2 or int((complete != complete[0]).any(axis=0).sum()) < MIN_VARIED:
        return None
    found = instability(complete)
    assert found.cochran_q is not None
    p = float(chdtrc(found.df, found.cochran_q))
    return RunEffect(
        found.cochran_q, found.df, p, math.sqrt(found.cochran_q / found.df) if p <= ALPHA else 1.0
    )


def inflate_p(p: float, inflation: float) -> float:
    """Return p if the standard error is `inflation` times as large.

    Evidence for the hypothesis is not changed.
    """
    if inflation == 1.0 or p >= 0.5:
        return p
    from scipy.special import ndtr, ndtri

    return float(ndtr(ndtri(p) / inflation))


def inflate_bound(bound: float, mean: float, inflation: float) -> float:
    """Return a confidence bound moved away from the mean by the same factor."""
    return mean + inflation * (bound - mean) if math.isfinite(bound) else bound
