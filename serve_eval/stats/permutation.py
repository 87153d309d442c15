"""The exact test of "no drop" for several runs per side: permute the answers to each prompt.

Under the hypothesis that the candidate is one more run of the reference, each of the K + M answers
to a prompt is equally likely to be one of the candidate's M (Fisher 1935, "The Design of
Experiments"). Given the answers, the candidate's sum over all prompts is a sum of independent draws
without replacement. For right/wrong answers and M = 1 it is Poisson binomial: a prompt that s of
the K + 1 answers have right adds 1 with probability s / (K + 1). K = M = 1 is McNemar's test, and
with graded scores the test of random signs. Nothing is assumed about the prompts.

Scores on a common grid (right/wrong, halves, averages of few runs) are summed exactly. For many
other scores the characteristic function of the sum is inverted (Davies 1973, "Numerical inversion
of a characteristic function"). For few, permutations are drawn from a generator with a fixed seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray

MAX_GRADES = 60
"""Largest number of grid steps between the two closest scores."""
MAX_GRID = 60_000
"""Largest number of grid points of the sum; beyond it the permutations are drawn."""
MAX_TYPES = 2_000
"""Largest number of distinct rows of answers for an exact sum."""
DRAWS = 9_999
MAX_FREQUENCIES = 1_500
"""Largest number of frequencies of the characteristic function before permutations are drawn
instead."""
FREQUENCIES_AT_ONCE = 32
TINY = 1e-200
"""Probabilities below this are set to 0."""
DECAYED = 1e-12
"""Size of the characteristic function below which it adds nothing, and the least p of the
inversion."""
REACH = 10.0
"""Number of standard deviations beyond which a sum of many bounded terms has negligible
probability."""
CHUNK = 2_000_000
"""Number of scores held in memory at once while drawing."""
TIE = 1e-9
"""Numbers closer than this share of the largest are equal."""
ON_GRID = 1e-6
"""Largest distance from a grid point, in steps, that rounding may cause."""


@dataclass(frozen=True, slots=True)
class PermutationTest:
    """One-sided p of "no drop".

    `p_exact` = P(sum <= observed); `p_mid` counts half of P(sum = observed). If permutations are
    drawn, `p_exact` counts the observed one too (Phipson and Smyth 2010).
    """

    p_exact: float
    p_mid: float


def exchange_test(
    runs: ArrayLike,
    candidate_runs: int = 1,
    weights: ArrayLike | None = None,
    clusters: IntArray | None = None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> PermutationTest:
    """Test whether the last `candidate_runs` rows of `runs` are no worse than the others.

    Higher scores are better. `runs` has one row per run and one finite score per prompt (column).
    Prompts of one cluster are permuted together. p depends neither on the order of the prompts nor
    on earlier calls. Raises ServeEvalError for missing or infinite scores, and for sides without a
    run.
    """
    import numpy

    check_count("the number of draws", draws, 1)
    scores = numpy.asarray(runs, dtype=numpy.float64)
    if scores.ndim != 2 or scores.shape[1] == 0 or not 0 < candidate_runs < len(scores):
        raise ServeEvalError(
            "a permutation test needs at least one prompt, and one run on each side",
            hint="give one row per run",
        )
    if not numpy.isfinite(scores).all():
        raise ServeEvalError(
            "the scores must be finite numbers", hint="pass missing scores to pair() as NaN"
        )
    units = _units(scores, weights, clusters)
    units = units[:, units.max(axis=0) > units.min(axis=0)]
    if units.shape[1] == 0:
        return PermutationTest(1.0, 1.0)
    units = units - units.min(axis=0)
    if (steps := _on_grid(units)) is not None and (
        found := _sum_permutations(steps, candidate_runs)
    ) is not None:
        return found
    if (p := _invert(units, candidate_runs)) is not None:
        return PermutationTest(p, p)
    return _draw(units, candidate_runs, draws, seed)


def sign_flip_test(
    differences: ArrayLike,
    weights: ArrayLike | None = None,
    clusters: IntArray | None = None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> PermutationTest:
    """Test "no drop" by flipping the sign of each difference, an exchange of 0 and the difference.

    It is valid for any change that loses as often as it gains, even one that permanently alters
    answers, such as another kernel. Clusters are flipped as a whole. Raises ServeEvalError as
    `exchange_test` does.
    """
    import numpy

    row = numpy.asarray(differences, dtype=numpy.float64)
    return exchange_test(
        numpy.stack([numpy.zeros_like(row), row]), 1, weights, clusters, draws=draws, seed=seed
    )


def _units(scores: FloatArray, weights: ArrayLike | None, clusters: IntArray | None) -> FloatArray:
    """Return weighted scores, one column per unit: a prompt, or a cluster summed."""
    import numpy

    from serve_eval.stats.paired_t import unit_sums

    if weights is not None:
        factors = numpy.asarray(weights, dtype=numpy.float64)
        if not numpy.isfinite(factors).all():
            raise ServeEvalError(
                "weights must be finite numbers", hint="give each prompt one weight, 0 or more"
            )
        scores = scores * factors
    if clusters is None:
        return scores
    codes = numpy.unique(clusters, return_inverse=True)[1]
    return numpy.stack([unit_sums(row, codes) for row in scores])


def _on_grid(units: FloatArray) -> IntArray | None:
    """Return the scores as whole numbers of a common step, or None if there is no such step.

    The step is the smallest score difference divided by a small whole number, so that averages of
    several runs and graded scores have one.
    """
    import numpy

    values = numpy.unique(units)
    gaps = numpy.diff(values)
    smallest = float(gaps[gaps > TIE * values[-1]].min())  # smaller gaps are rounding errors
    if values[-1] / smallest > MAX_GRID:
        return None
    for parts in range(1, MAX_GRADES + 1):
        steps = values * (parts / smallest)
        if float(numpy.abs(steps - steps.round()).max()) <= ON_GRID:
            found: IntArray = (units * (parts / smallest)).round().astype(numpy.int64)
            return found
    return None


def _sum_permutations(steps: IntArray, candidate_runs: int) -> PermutationTest | None:
    """Return p over all permutations by convolution over the prompts, or None if too many."""
    import numpy

    rows, counts = numpy.unique(numpy.sort(steps, axis=0).T, axis=0, return_counts=True)
    largest = int(steps.max(axis=0).sum()) * candidate_runs
    if len(rows) > MAX_TYPES or largest > MAX_GRID:
        return None
    total = numpy.ones(1)
    for row, count in sorted(
        zip(rows.tolist(), counts.tolist(), strict=True), key=lambda one: one[1] * one[0][-1]
    ):
        total[total < TINY] = 0.0
        total = numpy.convolve(total, _power(_one_prompt(row, candidate_runs), count))
    observed = int(steps[-candidate_runs:].sum())
    below, at = float(total[:observed].sum()), float(total[observed])
    return PermutationTest(min(1.0, below + at), min(1.0, below + at / 2.0))


def _one_prompt(row: Sequence[int], chosen: int) -> FloatArray:
    """Return the probability of each sum of `chosen` numbers, drawn without replacement."""
    import numpy

    ways = numpy.zeros((chosen + 1, sum(sorted(row)[-chosen:]) + 1))
    ways[0, 0] = 1.0
    for value in row:
        for taken in range(chosen, 0, -1):
            ways[taken, value:] += ways[taken - 1, : ways.shape[1] - value]
    chances: FloatArray = ways[chosen] / math.comb(len(row), chosen)
    return chances


def _power(one: FloatArray, count: int) -> FloatArray:
    """Return the distribution of the sum of `count` independent draws, by repeated squaring."""
    import numpy

    result, square = numpy.ones(1), one.copy()
    while count:
        # Subnormal numbers slow sums down.
        square[square < TINY] = result[result < TINY] = 0.0
        if count & 1:
            result = numpy.convolve(result, square)
        count >>= 1
        if count:
            square = numpy.convolve(square, square)
    return result


def _invert(units: FloatArray, candidate_runs: int) -> float | None:
    """Return P(sum < observed) + P(sum = observed) / 2 by the characteristic function of the sum.

    None if the function does not vanish soon enough: for few prompts, or scores that are nearly on
    a grid.
    """
    import numpy

    runs = len(units)
    centred = units - units.mean(axis=0)
    observed = float(centred[-candidate_runs:].sum())
    spread = math.sqrt(
        float(centred.var(axis=0, ddof=1).sum()) * candidate_runs * (runs - candidate_runs) / runs
    )
    if _beyond(observed, spread, float(centred.max() - centred.min()) * candidate_runs) < DECAYED:
        return DECAYED if observed < 0.0 else 1.0
    step = math.pi / (abs(observed) + 2.0 * REACH * spread)
    ways = math.comb(runs, candidate_runs)
    block = min(FREQUENCIES_AT_ONCE, max(1, CHUNK // (centred.size * candidate_runs)))
    total = 0.0
    for first in range(0, MAX_FREQUENCIES, block):
        places = numpy.arange(first, min(first + block, MAX_FREQUENCIES)) + 0.5
        frequencies = step * places
        chosen = [numpy.ones((len(places), centred.shape[1]), dtype=complex)]
        chosen += [numpy.zeros_like(chosen[0]) for _ in range(candidate_runs)]
        # Elementary symmetric polynomials of exp(i t x): all ways to choose the candidate's runs.
        for row in centred:
            waves = numpy.exp(1j * numpy.multiply.outer(frequencies, row))
            for taken in range(candidate_runs, 0, -1):
                chosen[taken] += waves * chosen[taken - 1]
        sizes = numpy.abs(chosen[candidate_runs]) / ways
        logs = numpy.log(numpy.maximum(sizes, 1e-300)).sum(axis=1)
        angles = numpy.angle(chosen[candidate_runs]).sum(axis=1)
        total += float(
            (numpy.exp(logs) * numpy.sin(angles - frequencies * observed) / places).sum()
        )
        if (logs[-1] < math.log(DECAYED)) and frequencies[-1] * spread >= REACH / 2.0:
            return min(1.0, max(DECAYED, 0.5 - total / math.pi))
        if frequencies[-1] * spread > 4.0 * REACH and logs[-1] > -4.0:
            return None  # a few large scores decide, and their sum is far from normal
    return None


def _beyond(distance: float, spread: float, widest: float) -> float:
    """Return a bound of P(a sum of independent terms is this far from its mean).

    It is Bernstein's inequality.
    """
    return math.exp(-(distance**2) / (2.0 * (spread**2 + widest * abs(distance) / 3.0)))


def _draw(units: FloatArray, candidate_runs: int, draws: int, seed: int) -> PermutationTest:
    """Return p over drawn permutations; the order of the prompts depends on the scores alone."""
    import numpy

    random = numpy.random.default_rng(seed)
    observed = float(units[-candidate_runs:].sum())
    tie = TIE * float(units.max())
    ordered = numpy.sort(units, axis=0)
    ordered = ordered[:, numpy.lexsort(ordered)]
    runs, width = ordered.shape
    below = at = 0
    rows = max(1, CHUNK // (width * (1 if candidate_runs == 1 else runs)))
    places = numpy.arange(width)
    for start in range(0, draws, rows):
        size = min(rows, draws - start)
        if candidate_runs == 1:
            sums = ordered[random.integers(0, runs, (size, width)), places].sum(axis=1)
        else:
            shuffled = random.permuted(numpy.broadcast_to(ordered, (size, runs, width)), axis=1)
            sums = shuffled[:, :candidate_runs].sum(axis=(1, 2))
        below += int((sums < observed - tie).sum())
        at += int((numpy.abs(sums - observed) <= tie).sum())
    return PermutationTest((below + at + 1) / (draws + 1), (below + at / 2.0 + 0.5) / (draws + 1))
