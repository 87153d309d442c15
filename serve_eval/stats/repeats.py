"""Combine and compare repeats of the same prompts, by answer or by whole run.

The run variance v and the A/A flip rate show how much of a difference is noise. Cochran's Q shows
whether runs differ as a whole (a replica, a time of day). If they do, prompts are not independent
and the paired level is too optimistic.

Paired tests allow for them. Prompts are independent given the endpoint only if nothing affects a
whole run at once: a replica, a time of day, a batch size. All prompts of a run share such an
effect, so the error of a mean shrinks less than the number of prompts suggests. Cochran's Q over
the runs of one side measures it: Q / df is the factor by which the variance of a run's mean exceeds
what its prompts explain. A single run per side cannot show it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.pairs import Pairs, RunEffect

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray


Vote = tuple[Hashable | None, float]
"""An answer (None: none was found) and its score."""


@dataclass(frozen=True, slots=True)
class Majority:
    """The mean score of the votes of `prompts` prompts, of which `tied` had several leaders."""

    value: float
    prompts: int
    tied: int


@dataclass(frozen=True, slots=True)
class PassAt:
    """pass@k, and the lowest and highest value that the missing answers allow."""

    value: float
    low: float
    high: float


def pass_at(right: Sequence[int], n: int, k: int, known: Sequence[int] | None = None) -> PassAt:
    """Return the chance that one of k answers is right, averaged over prompts.

    `right` holds each prompt's number of right answers among the `known` ones (None: all) of `n`.
    With m known answers, c of them right, the estimate is 1 - C(m - c, k) / C(m, k), which is
    unbiased if answers are missing by chance (Chen et al. 2021, "Evaluating large language models
    trained on code", arXiv 2107.03374, equation 1). The bounds count all missing answers as wrong,
    and as right (Manski 1989); the estimate lies between them for each prompt. A prompt with fewer
    than k known answers counts with the middle of its bounds. Raises ServeEvalError without a
    prompt, for k outside 1..n or counts out of range.
    """
    told = list(zip(right, [n] * len(right) if known is None else known, strict=True))
    if not told or not 1 <= k <= n or not all(0 <= c <= m <= n for c, m in told):
        raise ServeEvalError(
            f"pass@{k} needs prompts with 0 to {n} right answers of {n}, and k between 1 and {n}"
        )
    ways = math.comb(n, k)
    sums = [0.0, 0.0, 0.0]
    for (c, m), prompts in Counter(told).items():
        low, high = (1.0 - math.comb(wrong, k) / ways for wrong in (n - c, m - c))
        value = 1.0 - math.comb(m - c, k) / math.comb(m, k) if m >= k else (low + high) / 2.0
        for i, one in enumerate((value, low, high)):
            sums[i] += prompts * one
    value, low, high = (one / len(told) for one in sums)
    return PassAt(min(max(value, low), high), low, high)


def standard_error(means: Sequence[float]) -> float | None:
    """Return the standard error of a mean over questions, from the means of their answers.

    It is the clustered standard error with the question as the cluster (Miller 2024, "Adding Error
    Bars to Evals"): it has the noise of the questions and of the answers. None for one question.
    """
    if len(means) < 2:
        return None
    return statistics.stdev(means) / math.sqrt(len(means))


def majority(prompts: Iterable[Sequence[Vote]]) -> Majority | None:
    """Return the mean score of each prompt's most frequent answer, or None without a prompt.

    Source: Wang et al. 2022, "Self-consistency", arXiv 2203.11171. If several answers have the most
    votes, their scores are averaged, the expected value of a random choice. Votes without an answer
    count only if there are no others.
    """
    total, count, tied = 0.0, 0, 0
    for votes in prompts:
        known = [vote for vote in votes if vote[0] is not None] or list(votes)
        if not known:
            raise ServeEvalError("a prompt without votes has no majority")
        counted = Counter(answer for answer, _ in known)
        most = max(counted.values())
        tied += sum(number == most for number in counted.values()) > 1
        leading = [score for answer, score in known if counted[answer] == most]
        total += math.fsum(leading) / len(leading)
        count += 1
    return Majority(total / count, count, tied) if count else None


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
