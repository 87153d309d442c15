"""Pair the repeats of two sides, so that more repeats tell more about the same questions.

The drop *on these questions* has one kind of noise: an answer may turn out right or wrong. With K
reference runs and M runs of the candidate there are L = min(K, M) independent pairs of answers to
each question: the side with more runs is averaged in L equal blocks. The L n differences are judged
like those of L n questions with one answer a side. Their sum varies by the variance within the
questions alone, and the score bound charges the spread between the questions' true differences on
top, divided by L n: too much rather than too little (Hoeffding 1956, "On the distribution of the
number of successes in independent trials": equal chances vary most). With K = M = 1 it is the score
bound of the pairs.

The pairing of the repeats is arbitrary. The bound therefore takes the shares of the
differences over all rotations of one side, and L n as their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray

MOST_VALUES = 20_000
"""Number of differences beyond which no further rotation is added."""


def count_pairs_of_repeats(reference_runs: int, candidate_runs: int) -> int:
    """Return L, the number of independent pairs of answers to each question."""
    return min(reference_runs, candidate_runs)


def pair_repeats(reference: FloatArray, candidate: FloatArray) -> FloatArray:
    """Return differences candidate - reference: rotation, pair of answers and question.

    Rows of the arguments are runs, columns are questions. The mean over everything is the
    difference of the sides' means, and one rotation has all independent values.
    """
    import numpy

    pairs = count_pairs_of_repeats(len(reference), len(candidate))
    before, after = (_average_blocks(runs, pairs) for runs in (reference, candidate))
    rotations = max(1, min(pairs, MOST_VALUES // before.size))
    return numpy.stack([numpy.roll(after, place, axis=0) - before for place in range(rotations)])


def _average_blocks(runs: FloatArray, blocks: int) -> FloatArray:
    """Return the means of equal blocks of runs; a run on the border counts in both, by its part."""
    import numpy

    if blocks == len(runs):
        return runs
    edges = numpy.arange(blocks + 1) * (len(runs) / blocks)
    starts, places = edges[:-1, numpy.newaxis], numpy.arange(len(runs))
    inside = numpy.minimum(edges[1:, numpy.newaxis], places + 1) - numpy.maximum(starts, places)
    weights = inside.clip(min=0.0)
    means: FloatArray = (weights / weights.sum(axis=1, keepdims=True)) @ runs
    return means
