"""Pair the scores of candidate and reference, prompt by prompt or repeat by repeat.

Both endpoints answer the same prompts, so the difficulty of a prompt cancels in the difference
candidate - reference. The classic test counts that difficulty as noise; a paired test does not,
which makes it more sensitive.

Unit: that of the given scores (proportions: 0 wrong, 1 right). Sign: negative is worse, for every
metric.

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

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

    from serve_eval.stats.inputs import FloatArray, IntArray


ROUNDING = 1e-12
"""Differences below this share of the largest score come from averaging equal scores."""


@dataclass(frozen=True, slots=True)
class RunEffect:
    """Cochran's Q of the runs of one side, with its degrees of freedom and p.

    `inflation` is the factor on every standard error: sqrt(Q / df) if p is at most .05, else 1.
    """

    q: float
    df: int
    p: float
    inflation: float


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """One difference per planned prompt; `worst` and `best` differ if a score is missing.

    `worst` and `best` hold the difference with every missing score at the end of the range that is
    worst or best for the candidate (Manski 1989). `weights` sum to 1 over the planned prompts.
    `clusters` are numbers 0, 1, ... of groups whose prompts may fail together; None: each prompt is
    independent. `span` is the width of the metric's range. `binary`: each difference is -1, 0 or 1
    from one run per side without weights or clusters, so that McNemar's test applies. `down` and
    `up` count right-to-wrong and wrong-to-right in `answer_pairs` pairs of answers, run by run of
    both sides; None if scores are not binary. `reference` and `candidate` are the scores as given,
    one row per run, NaN if missing; `bad` and `good` are the ends of the metric's range.
    `reference_effect` is the effect of whole runs over all prompts of the reference, if these are
    only some of them.
    """

    reference: FloatArray
    candidate: FloatArray
    bad: float
    good: float
    worst: FloatArray
    best: FloatArray
    weights: FloatArray
    weighted: bool
    clusters: IntArray | None
    span: float
    binary: bool
    down: int | None
    up: int | None
    answer_pairs: int | None = None
    reference_effect: RunEffect | None = None
    far_ends: bool = False

    @property
    def reference_runs(self) -> int:
        """Number of runs of the reference."""
        return len(self.reference)

    @property
    def candidate_runs(self) -> int:
        """Number of runs of the candidate."""
        return len(self.candidate)

    @property
    def n(self) -> int:
        """Number of planned prompts."""
        return len(self.worst)

    @property
    def complete(self) -> NDArray[numpy.bool_]:
        """True for each prompt with all scores of both sides."""
        import numpy

        return numpy.equal(self.worst, self.best)

    @property
    def differences(self) -> FloatArray:
        """Differences of the complete pairs."""
        return self.worst[self.complete]

    @property
    def missing_share(self) -> float:
        """Share of the scores that are missing.

        With several runs a prompt may lack only some of its scores. Without a range a prompt that
        lacks any score counts as missing.
        """
        if not math.isfinite(self.span):
            return self.missing / self.n
        return float((self.best - self.worst).mean()) / self.span

    @property
    def missing(self) -> int:
        """Number of prompts that lack a score on either side."""
        return self.n - int(self.complete.sum())

    def fill_runs(self, *, at_best: bool) -> FloatArray:
        """Return one row per run, the reference's first, with missing scores filled.

        They are at their best or worst for the candidate. Higher is better in the result, for every
        metric.
        """
        import numpy

        ends = (self.bad, self.good) if at_best else (self.good, self.bad)
        sides = zip((self.reference, self.candidate), ends, strict=True)
        rows = numpy.concatenate(
            [numpy.where(numpy.isnan(scores), end, scores) for scores, end in sides]
        )
        return rows if self.good > self.bad else -rows

    @property
    def units(self) -> int:
        """Number of independent units with a weight: clusters if there are any, else prompts."""
        import numpy

        used = self.weights > 0.0
        return int(used.sum()) if self.clusters is None else len(numpy.unique(self.clusters[used]))


def pair(
    reference_runs: ArrayLike,
    candidate_runs: ArrayLike,
    *,
    lo: float,
    hi: float,
    higher_is_better: bool,
    weights: ArrayLike | None = None,
    clusters: Sequence[Hashable] | None = None,
    far_ends: bool = False,
) -> Pairs:
    """Pair two arrays of scores, one row per run and one column per prompt in the same order.

    A plain list is one run. Runs of one side are averaged per prompt. NaN is a missing score; `lo`
    and `hi` are the ends of the metric's range (infinite if it has none). Raises ServeEvalError if
    nothing can be paired: no prompts, numbers of prompts that differ, infinite scores or scores
    outside the range, every pair missing, or impossible weights and clusters.
    """
    import numpy

    if math.isnan(lo) or math.isnan(hi) or not lo < hi:
        raise ServeEvalError(
            f"the metric's range {lo}..{hi} is empty", hint="give the worst and best score, lo < hi"
        )
    reference, candidate = (
        _scores("reference", reference_runs, lo, hi),
        _scores("candidate", candidate_runs, lo, hi),
    )
    n = reference.shape[1]
    if candidate.shape[1] != n:
        raise ServeEvalError(
            f"{n} reference scores cannot be paired with {candidate.shape[1]} candidate scores",
            hint=(
                "give both sides the same prompts in the same order, with NaN for a missing answer"
            ),
        )
    sign = 1.0 if higher_is_better else -1.0
    bad, good = (lo, hi) if higher_is_better else (hi, lo)
    worst = _round(sign * (_fill(candidate, bad) - _fill(reference, good)), reference)
    best = _round(sign * (_fill(candidate, good) - _fill(reference, bad)), reference)
    if not (worst == best).any():
        raise ServeEvalError(
            f"none of the {n} prompts has a score on both sides",
            hint=("check the failures of the run: no response of the endpoint could be scored"),
        )
    shares, weighted = _weights(weights, n)
    codes = _clusters(clusters, n)
    zero_or_one = (
        not far_ends and (lo, hi) == (0.0, 1.0) and _binary(reference) and _binary(candidate)
    )
    runs = min(len(reference), len(candidate))
    changes = sign * (candidate[:runs] - reference[:runs])
    single = len(reference) == 1 and len(candidate) == 1
    return Pairs(
        reference=reference,
        candidate=candidate,
        bad=bad,
        good=good,
        worst=worst,
        best=best,
        weights=shares,
        weighted=weighted,
        clusters=codes,
        span=hi - lo,
        binary=zero_or_one and single and not weighted and codes is None,
        down=int(numpy.count_nonzero(changes < 0.0)) if zero_or_one else None,
        up=int(numpy.count_nonzero(changes > 0.0)) if zero_or_one else None,
        answer_pairs=int(numpy.count_nonzero(~numpy.isnan(changes))) if zero_or_one else None,
        far_ends=far_ends,
    )


def _scores(side: str, runs: ArrayLike, lo: float, hi: float) -> FloatArray:
    """Return rows of runs, after a check that each score is missing or within the range."""
    import numpy

    try:
        scores = numpy.asarray(runs, dtype=numpy.float64)
    except ValueError as error:
        raise ServeEvalError(
            f"the runs of the {side} have different numbers of prompts",
            hint="give each run one score per prompt",
        ) from error
    scores = scores[numpy.newaxis] if scores.ndim == 1 else scores
    if scores.ndim != 2 or scores.size == 0:
        raise ServeEvalError(
            f"the {side} has no scores to pair", hint="evaluate at least one prompt in one run"
        )
    wrong = numpy.isinf(scores) | (scores < lo) | (scores > hi)
    if wrong.any():
        run, prompt = (int(i) for i in numpy.argwhere(wrong)[0])
        raise ServeEvalError(
            f"{int(wrong.sum())} scores of the {side} are infinite or outside {lo:g}..{hi:g}; the"
            f" first is {scores[run, prompt]} (run {run}, prompt {prompt})",
            hint=(
                "check the unit (proportions run from 0 to 1, points to 100); NaN marks a missing"
                " score"
            ),
        )
    return scores


def _fill(scores: FloatArray, value: float) -> FloatArray:
    """Return the mean per prompt over the runs with `value` in place of missing scores."""
    import numpy

    filled: FloatArray = numpy.where(numpy.isnan(scores), value, scores).mean(axis=0)
    return filled


def _round(differences: FloatArray, reference: FloatArray) -> FloatArray:
    """Return the differences, with rounding errors set to 0."""
    import numpy

    largest = float(numpy.nanmax(numpy.abs(reference), initial=0.0))
    differences[numpy.abs(differences) <= ROUNDING * largest] = 0.0
    return differences


def _binary(scores: FloatArray) -> bool:
    import numpy

    return bool((numpy.isnan(scores) | (scores == 0.0) | (scores == 1.0)).all())


def _weights(weights: ArrayLike | None, n: int) -> tuple[FloatArray, bool]:
    """Return shares that sum to 1, and whether they differ."""
    import numpy

    if weights is None:
        return numpy.full(n, 1.0 / n), False
    row = numpy.asarray(weights, dtype=numpy.float64)
    if row.shape != (n,):
        raise ServeEvalError(
            f"{row.size} weights do not fit {n} prompts", hint="give each prompt exactly one weight"
        )
    if not numpy.isfinite(row).all() or (row < 0.0).any() or row.sum() <= 0.0:
        raise ServeEvalError(
            "weights must be finite and not negative, with a sum above 0",
            hint="a weight is the size of a prompt, such as its number of reference words",
        )
    return row / row.sum(), bool((row != row[0]).any())


def _clusters(clusters: Sequence[Hashable] | None, n: int) -> IntArray | None:
    """Return numbers 0, 1, ... in order of first appearance."""
    import numpy

    if clusters is None:
        return None
    if len(clusters) != n:
        raise ServeEvalError(
            f"{len(clusters)} cluster keys do not fit {n} prompts", hint="give each prompt one key"
        )
    number: dict[Hashable, int] = {}
    return numpy.array([number.setdefault(key, len(number)) for key in clusters], dtype=numpy.int64)


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
