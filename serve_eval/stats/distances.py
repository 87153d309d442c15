"""Judge the distances between answers, to each other or beyond a limit.

One endpoint answered each prompt K times and another one M times. If both are alike, the K + M
answers to a prompt are exchangeable, so that any K of them could be the endpoint's own. The
statistic of a prompt is the mean distance between own and other answers, less the mean distance
between two own ones; over the prompts it is summed. Its distribution under exchange comes from
labels drawn at random within each prompt (Fisher 1935, "The Design of Experiments"; Clarke 1993,
"Non-parametric multivariate analyses of changes in community structure", Australian Journal of
Ecology 18, does so with ranks of distances). Each prompt keeps its own answers, however hard it is,
so that K answers to one prompt are never counted as K prompts.

Several measures of distance are judged by the smallest of their p-values, whose distribution comes
from the same labels: step 1 of the min-p procedure of Westfall and Young 1993, "Resampling-Based
Multiple Testing".

The evidence is an average of likelihood ratios of shares on one side of the hypothesis's own,
q. Under "the share is at most q" (or, for the other side, at least q), whatever happened before, no
such ratio grows on average, because it is monotone in the share: so it exceeds 1 / alpha at any
time with probability at most alpha (Ville 1939). It depends on the two counts alone, so it may be
looked at after every probe. Sources: Wald, "Sequential tests of statistical hypotheses", 1945;
Ramdas and Wang, "Hypothesis testing with e-values", arXiv 2410.23614, chapter 7.

Beyond a threshold, most distributions fall like a power of the value; the exponent follows from the
largest values. Sources: Hill, "A simple general approach to inference about the tail of a
distribution", 1975; Weissman, "Estimation of parameters and large quantiles based on the k largest
observations", 1978.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray


def common_prefix(a: str, b: str) -> int:
    """Return the length, in characters, of the common prefix of two texts."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # By bisection: slices compare at memory speed.
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


DRAWS = 9_999
"""Drawn labels of all prompts; the least p is 1 / (DRAWS + 1)."""
MOST_LABELS = 1_000
"""Ways to label the answers of a prompt from which some are drawn, the same for each prompt."""
_CELLS = 4_000_000  # numbers held in memory at once
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class FartherTest:
    """One-sided p of "other answers are as near as own ones", and that of each measure alone.

    `excess` has the statistic by measure and prompt: above 0, other answers are farther.
    """

    p: float
    each: tuple[float, ...]
    excess: FloatArray


def rank_distances(distances: ArrayLike) -> FloatArray:
    """Return the ranks of the distances within each prompt, from 0 to 1; equal ones share a rank.

    Shape of both: prompts, answers, answers; only the part above the diagonal counts. Two kinds of
    distances, such as 0 and 1, stay as far apart as they are in every prompt.
    """
    import numpy
    from scipy.stats import rankdata

    given = numpy.asarray(distances, dtype=numpy.float64)
    upper = numpy.triu_indices(given.shape[1], 1)
    ranks = rankdata(given[:, *upper], axis=1) / max(1, len(upper[0]))
    found = numpy.zeros_like(given)
    found[:, *upper] = ranks
    return found + found.transpose(0, 2, 1)


def farther_than_own(
    measures: ArrayLike, own: int, *, seed: int = 0, draws: int = DRAWS
) -> FartherTest:
    """Test if the answers after the first `own` ones are farther from these than these are apart.

    `measures` has the distances by measure, prompt, answer and answer. The p counts the observed
    labels as drawn once, so that the level is never above alpha but for the drawing of labels. The
    same `seed` gives the same p. Raises ServeEvalError for fewer than two own or no other answers.
    """
    import numpy

    given = numpy.asarray(measures, dtype=numpy.float64)
    answers = given.shape[-1]
    if not 2 <= own < answers:
        raise ServeEvalError(
            f"{own} own answers of {answers} show no noise",
            hint="give two answers of one endpoint and one of the other, or more",
        )
    random = numpy.random.default_rng(seed)
    labels = _list_labels(answers, own, random)
    excess = numpy.stack([_measure_excess(one, labels, own) for one in given])
    moved = numpy.ptp(excess, axis=2).max(axis=0) > _ROUNDING
    observed = excess[:, :, 0]
    sums = _draw_sums(excess[:, moved], random, draws)
    sums[:, 0] = observed[:, moved].sum(axis=1)
    each = numpy.stack([_share_at_least(one) for one in sums])
    least = each.min(axis=0)
    p = float((least <= least[0] + _ROUNDING).mean())
    return FartherTest(p=p, each=tuple(map(float, each[:, 0])), excess=observed)


def farther_in_each(
    measures: ArrayLike, own: int, partitions: Iterable[Sequence[int]], *, draws: int = DRAWS
) -> FartherTest:
    """Test as `farther_than_own` does, with the prompts of a unit labelled together; return max p.

    A partition has the number of the unit of each prompt. The answers to prompts of one unit may
    depend on each other, because the labels of a unit are drawn once. If it is not known which do,
    the level holds as long as any of the partitions has them in one unit, since the largest p is
    at least as large as that one's. `excess` is that of the first partition, by unit.
    """
    import numpy

    given = numpy.asarray(measures, dtype=numpy.float64)
    found = []
    for partition in partitions:
        _, units = numpy.unique(numpy.asarray(partition), return_inverse=True)
        summed = numpy.zeros((len(given), units.max(initial=0) + 1, *given.shape[2:]))
        for one, sums in zip(given, summed, strict=True):
            numpy.add.at(sums, units, one)
        found.append(farther_than_own(summed, own, draws=draws))
    return FartherTest(
        p=max(one.p for one in found),
        each=tuple(map(max, zip(*(one.each for one in found), strict=True))),
        excess=found[0].excess,
    )


def _list_labels(answers: int, own: int, random: object) -> IntArray:
    """Return rows of 1 for an own answer and 0 for another one, the observed row first."""
    import numpy

    assert isinstance(random, numpy.random.Generator)
    if math.comb(answers, own) <= MOST_LABELS:
        chosen = list(itertools.combinations(range(answers), own))
    else:
        drawn = random.random((MOST_LABELS - 1, answers)).argsort(axis=1)[:, :own]
        chosen = [tuple(range(own)), *map(tuple, drawn.tolist())]
    labels = numpy.zeros((len(chosen), answers), dtype=numpy.int64)
    for row, places in zip(labels, chosen, strict=True):
        row[list(places)] = 1
    return labels


def _measure_excess(distances: FloatArray, labels: IntArray, own: int) -> FloatArray:
    """Return the statistic of each prompt under each labelling."""
    import numpy

    answers = distances.shape[-1]
    mine, theirs = labels.astype(numpy.float64), 1.0 - labels
    found = []
    step = max(1, _CELLS // (len(labels) * answers))
    for start in range(0, len(distances), step):
        reached = mine @ distances[start : start + step]
        within = (reached * mine).sum(axis=2) / (own * (own - 1))
        across = (reached * theirs).sum(axis=2) / (own * (answers - own))
        found.append(across - within)
    return numpy.concatenate(found) if found else numpy.zeros((0, len(labels)))


def _draw_sums(excess: FloatArray, random: object, draws: int) -> FloatArray:
    """Return the sums over prompts by measure and draw; column 0 is left for the observed ones."""
    import numpy

    assert isinstance(random, numpy.random.Generator)
    count, prompts, labels = excess.shape
    sums = numpy.zeros((count, draws + 1))
    for place in range(prompts):
        sums += excess[:, place, random.integers(labels, size=draws + 1)]
    return sums


def _share_at_least(sums: FloatArray) -> FloatArray:
    """Return for each sum the share of all sums that are as large or larger."""
    import numpy

    ordered = numpy.sort(sums)
    below = numpy.searchsorted(ordered, sums - _ROUNDING, side="left")
    return (len(sums) - below) / len(sums)


ABOVE = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 7 / 8)
"""Places of the alternatives on the way from q to 1, in the order of their shares."""
BELOW = ((0.0, 0.6), (0.1, 0.15), (0.3, 0.15), (0.6, 0.1))
"""Alternatives below q, as shares of q, and their weights. Most of the weight is on no hit."""
HALVINGS = 40


def log_evidence_above(hits: int, misses: int, share: float) -> float:
    """Return ln of the evidence against "at most `share` of the probes are hits"."""
    _check(hits, misses, share)
    weight = 1 / len(ABOVE)
    places = (share + place * (1 - share) for place in ABOVE)
    return _log_average(hits, misses, share, ((place, weight) for place in places))


def log_evidence_below(hits: int, misses: int, share: float) -> float:
    """Return ln of the evidence against "at least `share` of the probes are hits"."""
    _check(hits, misses, share)
    return _log_average(hits, misses, share, ((share * part, weight) for part, weight in BELOW))


def share_upper_bound(hits: int, misses: int, alpha: float) -> float:
    """Return the smallest share that the evidence excludes at level alpha, at any time; 1 if none.

    All larger shares are excluded too.
    """
    need = -math.log(alpha)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if log_evidence_below(hits, misses, middle) >= need:
            high = middle
        else:
            low = middle
    return high


def _check(hits: int, misses: int, share: float) -> None:
    if hits < 0 or misses < 0 or not 0 < share < 1:
        raise ServeEvalError(f"{hits} hits, {misses} misses and a share of {share} do not fit")


def _log_average(
    hits: int, misses: int, share: float, alternatives: Iterable[tuple[float, float]]
) -> float:
    terms = []
    for place, weight in alternatives:
        if place == 0 and hits:
            continue
        growth = hits * math.log(place / share) if hits else 0.0
        growth += misses * math.log((1 - place) / (1 - share))
        terms.append(math.log(weight) + growth)
    top = max(terms)
    return top + math.log(sum(math.exp(term - top) for term in terms))


LARGEST = 15
"""Number of the largest values from which the exponent is estimated."""


def share_beyond(values: Sequence[float], limit: float) -> float:
    """Return the estimated chance that a further value is beyond a limit.

    It is the share of `values` beyond the limit if there are any. 1 for too few values.
    """
    ordered = sorted(values, reverse=True)
    if len(ordered) <= LARGEST:
        return 1.0
    if beyond := sum(one > limit for one in ordered):
        return beyond / len(ordered)
    threshold = ordered[LARGEST]
    if threshold <= 0.0:
        return 0.0 if ordered[0] <= 0.0 else LARGEST / len(ordered)
    hill = sum(math.log(one / threshold) for one in ordered[:LARGEST]) / LARGEST
    if hill <= 0.0:
        return 0.0
    return LARGEST / len(ordered) * float((limit / threshold) ** (-1 / hill))


def count_unlikely(mean: float, alpha: float) -> int:
    """Return the smallest number that a Poisson number of this mean reaches rarely enough.

    Its chance to be reached is at most alpha.
    """
    term, below, count = math.exp(-mean), math.exp(-mean), 1
    while 1.0 - below > alpha:
        term *= mean / count
        below += term
        count += 1
    return count
