"""Test if answers of another endpoint are farther from one's own repeats than these are apart.

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
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray

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


def farther_than_own(measures: ArrayLike, own: int, *, seed: int = 0) -> FartherTest:
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
    sums = _draw_sums(excess[:, moved], random)
    sums[:, 0] = observed[:, moved].sum(axis=1)
    each = numpy.stack([_share_at_least(one) for one in sums])
    least = each.min(axis=0)
    p = float((least <= least[0] + _ROUNDING).mean())
    return FartherTest(p=p, each=tuple(map(float, each[:, 0])), excess=observed)


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


def _draw_sums(excess: FloatArray, random: object) -> FloatArray:
    """Return the sums over prompts by measure and draw; column 0 is left for the observed ones."""
    import numpy

    assert isinstance(random, numpy.random.Generator)
    count, prompts, labels = excess.shape
    sums = numpy.zeros((count, DRAWS + 1))
    for place in range(prompts):
        sums += excess[:, place, random.integers(labels, size=DRAWS + 1)]
    return sums


def _share_at_least(sums: FloatArray) -> FloatArray:
    """Return for each sum the share of all sums that are as large or larger."""
    import numpy

    ordered = numpy.sort(sums)
    below = numpy.searchsorted(ordered, sums - _ROUNDING, side="left")
    return (len(sums) - below) / len(sums)
