"""Measure how much one endpoint disagrees with itself, on repeated runs of the same prompts.

The run variance v and the A/A flip rate show how much of a difference is noise. Cochran's Q shows
whether runs differ as a whole (a replica, a time of day). If they do, prompts are not independent
and the paired level is too optimistic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray

FOURTH = 4
"""Least number of runs from which the fourth moment of a prompt's scores can be estimated."""


@dataclass(frozen=True, slots=True)
class Instability:
    """The disagreement between `runs` runs of `prompts` prompts.

    `variance`: mean variance of a prompt's score between runs, in squared units of the score.
    `flip_rate`, the chance that two runs disagree on a prompt, and `mixed`, the share of prompts
    that were both right and wrong, exist for right/wrong scores only. `cochran_q` with `df` degrees
    of freedom and its p are None if no prompt's score varied. `dispersion` is Q / df: 1 on average
    if runs differ only prompt by prompt, more if they differ as a whole. `variance_df` are the
    degrees of freedom with which `variance` is known: infinite if the prompts' variances show no
    error, None for a single prompt or if nothing varied. `widest` is the largest difference between
    two scores of a prompt.
    """

    runs: int
    prompts: int
    variance: float
    flip_rate: float | None
    mixed: float | None
    cochran_q: float | None
    df: int
    p: float | None
    dispersion: float | None = None
    variance_df: float | None = None
    widest: float = 0.0


def instability(runs: ArrayLike) -> Instability:
    """Measure the run variance, and whether runs differ as a whole.

    Rows are runs, columns prompts. A prompt with a missing score (NaN) in any run is left out. With
    s_i^2 the sample variance of prompt i over the K runs and C_k the sum of run k over the n
    prompts:

    * v = mean s_i^2; flip rate = 2 v.
    * Q = sum_k (C_k - mean C)^2 / sum_i s_i^2, chi-squared with K - 1 degrees of freedom if the
      runs are exchangeable within each prompt: the sums of many independent prompts are nearly
      normal, and permuting a prompt's scores over the runs gives them the covariance s_i^2 (I -
      1/K). For right/wrong scores it is the Q of Cochran 1950, "The comparison of percentages in
      matched samples".
    * The degrees of freedom of v are 2 v^2 / se^2 (Satterthwaite 1946, "An approximate distribution
      of estimates of variance components"). With two or three runs se = sd(s_i^2) / sqrt(n), which
      counts differences between the prompts' variances as uncertainty. From four runs on se is that
      of given prompts, from the unbiased estimate (2 K k2^2 + (K - 1) k4) / (K (K + 1)) of the
      variance of each s_i^2 with the k-statistics k2, k4 of its scores (Kendall and Stuart 1969,
      "The advanced theory of statistics", volume 1, chapter 12).

    Raises ServeEvalError for fewer than two runs, no complete prompt or infinite scores.
    """
    import numpy

    scores = numpy.asarray(runs, dtype=numpy.float64)
    if scores.ndim != 2 or scores.shape[0] < 2:
        raise ServeEvalError(
            "instability needs two or more runs of the same prompts",
            hint="run the same plan again into another folder",
        )
    scores = scores[:, ~numpy.isnan(scores).any(axis=0)]
    if scores.shape[1] == 0:
        raise ServeEvalError(
            "no prompt was scored in every run", hint="check the failures of the runs"
        )
    if numpy.isinf(scores).any():
        raise ServeEvalError(
            "instability needs finite scores", hint="check the scorer: it gave an infinite score"
        )
    count, prompts = scores.shape
    varied = scores[:, (scores != scores[0]).any(axis=0)]
    variance = float(varied.var(axis=0, ddof=1).sum()) / prompts
    right_or_wrong = bool(((scores == 0.0) | (scores == 1.0)).all())
    q, p = _cochran(varied)
    return Instability(
        runs=count,
        prompts=prompts,
        variance=variance,
        flip_rate=2.0 * variance if right_or_wrong else None,
        mixed=varied.shape[1] / prompts if right_or_wrong else None,
        cochran_q=q,
        df=count - 1,
        p=p,
        dispersion=None if q is None else q / (count - 1),
        variance_df=_variance_df(varied, prompts),
        widest=float(numpy.ptp(varied, axis=0).max()) if varied.size else 0.0,
    )


def successive_dispersion(runs: ArrayLike) -> tuple[float, float] | None:
    """Return the dispersion of ordered runs from successive differences, and its df.

    It is sum_k (C_k - C_(k-1))^2 / (2 (K - 1)) over sum_i s_i^2, with 2 (K - 1)^2 / (3 K - 4)
    degrees of freedom (von Neumann, Kent, Bellinson and Hart 1941, "The mean square successive
    difference"). Runs that vary as a whole raise it as they raise Q / df; one lasting step among
    them, or a slow decline, hardly does. Rows and columns are as in `instability`, without missing
    scores; None if nothing varied.
    """
    import numpy

    scores = numpy.asarray(runs, dtype=numpy.float64)
    count = len(scores)
    total = float(scores.var(axis=0, ddof=1).sum())
    if (scores == scores[0]).all():
        return None
    steps = numpy.diff(scores.sum(axis=1))
    return float(steps @ steps) / (2 * (count - 1) * total), 2 * (count - 1) ** 2 / (3 * count - 4)


def _cochran(varied: FloatArray) -> tuple[float | None, float | None]:
    """Return Q and its p.

    Rows are runs; columns are the prompts whose score varied. The others add nothing.
    """
    count = len(varied)
    if varied.shape[1] == 0:
        return None, None
    from scipy.special import chdtrc

    q = count * float(varied.sum(axis=1).var()) / float(varied.var(axis=0, ddof=1).sum())
    return q, float(chdtrc(count - 1, q))


def _variance_df(varied: FloatArray, prompts: int) -> float | None:
    """Return Satterthwaite's degrees of freedom of the mean of all prompts' variances.

    Columns are as in `_cochran`.
    """
    if prompts < 2 or varied.shape[1] == 0:
        return None
    count = len(varied)
    variances = varied.var(axis=0, ddof=1)
    total = float(variances.sum())
    if count < FOURTH:
        squared_error = (
            (float(variances @ variances) - total**2 / prompts) * prompts / (prompts - 1)
        )
    else:
        centred = varied - varied.mean(axis=0)
        second, fourth = (centred**2).sum(axis=0), (centred**4).sum(axis=0)
        k4 = count * (count * (count + 1) * fourth - 3 * (count - 1) * second**2)
        k4 /= count * (count - 1) * (count - 2) * (count - 3)
        squared_error = float((2 * count * variances**2 + (count - 1) * k4).sum()) / (
            count * (count + 1)
        )
    return 2.0 * total**2 / squared_error if squared_error > 1e-12 * total**2 else math.inf
