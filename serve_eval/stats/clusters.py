"""Number groups of prompts that err together, and compare sums over prompts by group.

Questions about one passage share its misreading, utterances of a speaker his accent. Every test
that takes such prompts for independent counts one mistake several times (Miller 2024, "Adding Error
Bars to Evals", section 2.2; Cameron and Miller 2015, "A Practitioner's Guide to Cluster-Robust
Inference"). Here the cluster is the unit instead: its sides are exchanged, its differences summed,
as a whole.

Such a value f is no mean of scores, but the difference of two is: with S and T the sums of the two
sides, f(T) - f(S) = g . (T - S), where g is the mean gradient of f on the way from S to T. So
g . (t - s), for the parts s and t of one prompt, is what this prompt adds to the difference. The
differences of the prompts are then tested and bounded like those of scores: exchanging the sides of
single prompts is the approximate randomisation of Noreen 1989 and of Riezler and Maxwell 2005, "On
some pitfalls in automatic evaluation and significance testing for MT", with the value made linear.

For a ratio whose denominators do not depend on the answers, such as edits divided by words of the
reference, nothing is approximated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError
from serve_eval.stats.pairs import Pairs, pair

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray, IntArray


def cluster_keys(names: Sequence[str]) -> list[Hashable] | None:
    """Return a key per prompt, the same for prompts of one name; None if no two share a name.

    A prompt without a name is a cluster of its own.
    """
    named = Counter(name for name in names if name)
    if not any(count > 1 for count in named.values()):
        return None
    return [name or place for place, name in enumerate(names)]


def number_keys(keys: Sequence[Hashable]) -> IntArray:
    """Return numbers 0, 1, ... of the keys in the order of their first appearance."""
    import numpy

    numbers: dict[Hashable, int] = {}
    return numpy.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=numpy.int64)


def two_sided_p(signs: Sequence[int], names: Sequence[str]) -> float:
    """Return the exact two-sided p of "as many prompts change upwards as downwards".

    `signs` has -1 or 1 for each prompt that changed. The signs of a cluster are flipped together;
    for independent prompts this is McNemar's test.
    """
    from serve_eval.stats.permutation import sign_flip_test
    from serve_eval.stats.sign_tests import mcnemar

    keys = cluster_keys(names)
    if keys is None:
        down = sum(sign < 0 for sign in signs)
        return mcnemar(down, len(signs) - down).p_exact_two_sided
    net = Counter[Hashable]()
    for key, sign in zip(keys, signs, strict=True):
        net[key] += sign
    sums = [float(one) for one in net.values()]
    sides = (sums, [-one for one in sums])
    return min(1.0, 2.0 * min(sign_flip_test(side).p_exact for side in sides))


def design_effect(values: ArrayLike, clusters: IntArray | None) -> float:
    """Return the variance of the mean of clustered values over that of independent ones, 1 or more.

    For clusters of m values with correlation r it is about 1 + (m - 1) r (Kish 1965, "Survey
    Sampling", section 5.4). n prompts then tell as much as n / effect independent ones. It is 1 for
    values without spread, and for fewer than two clusters, which cannot show it.
    """
    import numpy

    from serve_eval.stats.paired_t import paired_t

    row = numpy.asarray(values, dtype=numpy.float64)
    if clusters is None or len(numpy.unique(clusters)) < 2:
        return 1.0
    alone, together = paired_t(row).se, paired_t(row, clusters=clusters).se
    return max(1.0, (together / alone) ** 2) if alone > 0.0 else 1.0


def design_effect_of_runs(runs: ArrayLike, clusters: IntArray) -> float:
    """Return the design effect on the mean difference of two runs of one endpoint, 1 or more.

    `runs` has a row per run and a column per prompt. Their deviations from each prompt's mean over
    the runs have the mean 0, so that the effect is the sum of the squares of the clusters' sums
    over that of the single deviations. It is 1 for runs that agree on every prompt.
    """
    import numpy

    rows = numpy.asarray(runs, dtype=numpy.float64)
    changes = rows - rows.mean(axis=0)
    sums = numpy.stack([numpy.bincount(clusters, weights=row) for row in changes])
    alone = float((changes**2).sum())
    return max(1.0, float((sums**2).sum()) / alone) if alone > 0.0 else 1.0


def effective_size(values: ArrayLike, clusters: IntArray | None) -> float:
    """Return the number of independent values that tell as much about the mean as these.

    It allows for the number of clusters as well, from which the variance is estimated: n / effect *
    (t_(n-1) / t_(G-1))^2 with the 97.5 % points of Student's t (Korn and Graubard 1998, "Confidence
    intervals for proportions with small expected number of positive counts estimated from survey
    data").
    """
    import numpy
    from scipy.stats import t

    n = len(numpy.asarray(values))
    if clusters is None or (groups := len(numpy.unique(clusters))) < 2:
        return float(n)
    ratio = float(t.ppf(0.975, n - 1) / t.ppf(0.975, groups - 1))
    return max(1.0, n / design_effect(values, clusters) * ratio**2)


STEPS = 16
"""Number of points on the way between the two sums at which the gradient is taken."""
STEP = 1e-5
"""Width of a difference quotient, as a share of a sum."""
ROUNDING = 1e-9
"""Share of the range by which rounding may carry a score beyond it."""

Value = Callable[[Sequence[float]], float]


def pair_sums(
    reference_runs: ArrayLike,
    candidate_runs: ArrayLike,
    value: Value,
    *,
    higher_is_better: bool,
    limits: Sequence[float] | None = None,
    groups: Sequence[str] = (),
) -> Pairs:
    """Pair two arrays of parts: run, part and prompt. NaN is a missing answer.

    The difference of the pairs is that of the values. `limits` has, by part, the most by which one
    answer can change it, 0 for a part that no answer changes (None: unknown); larger changes that
    were observed replace them. `groups` names what prompts share, such as a speaker, for each
    prompt; those without a name are on their own. Raises ServeEvalError as `pair` does.
    """
    import numpy

    reference, candidate = (_parts(runs) for runs in (reference_runs, candidate_runs))
    if reference.shape[1:] != candidate.shape[1:]:
        raise ServeEvalError(
            f"the sides have parts of {reference.shape[1:]} and {candidate.shape[1:]} prompts",
            hint="give both sides the same prompts in the same order",
        )
    every = numpy.concatenate([reference, candidate])
    complete = ~numpy.isnan(every).any(axis=(0, 1))
    if not complete.any():
        raise ServeEvalError(
            f"none of the {every.shape[2]} prompts has a score on both sides",
            hint="check the failures of the run: no response of the endpoint could be scored",
        )
    known = every[:, :, complete]
    most = numpy.full(every.shape[1], math.inf) if limits is None else numpy.asarray(limits)
    sides = (runs[:, :, complete].mean(axis=0).sum(axis=1) for runs in (reference, candidate))
    weights = int(complete.sum()) * mean_gradient(value, *sides) * (most > 0.0)
    lo, hi = _range(weights, numpy.maximum(most, known.max(axis=(0, 2))))
    return pair(
        numpy.tensordot(reference, weights, axes=(1, 0)),
        numpy.tensordot(candidate, weights, axes=(1, 0)),
        lo=lo,
        hi=hi,
        higher_is_better=higher_is_better,
        clusters=cluster_keys(groups) if groups else None,
        far_ends=True,
    )


def mean_gradient(value: Value, before: FloatArray, after: FloatArray) -> FloatArray:
    """Return the mean gradient of `value` on the straight way between two points.

    A part whose sums are 0 on both sides has no effect. Where the gradient jumps, as that of BLEU's
    brevity penalty does, each side of the jump has its share.
    """
    import numpy

    total = numpy.zeros(len(before))
    for step in range(STEPS):
        point = before + (step + 0.5) / STEPS * (after - before)
        for place, size in enumerate(point.tolist()):
            width = STEP * abs(size)
            if width > 0.0:
                ends = []
                for sign in (1.0, -1.0):
                    moved = point.copy()
                    moved[place] += sign * width
                    ends.append(value(moved.tolist()))
                total[place] += (ends[0] - ends[1]) / (2.0 * width)
    return total / STEPS


def _parts(runs: ArrayLike) -> FloatArray:
    """Return the parts, where a prompt that lacks one of them lacks all."""
    import numpy

    parts = numpy.array(runs, dtype=numpy.float64)
    if parts.ndim != 3 or parts.size == 0:
        raise ServeEvalError("there are no sums to pair", hint="evaluate at least one prompt")
    filled: FloatArray = numpy.where(numpy.isnan(parts).any(axis=1, keepdims=True), math.nan, parts)
    return filled


def _range(weights: FloatArray, most: FloatArray) -> tuple[float, float]:
    """Return the lowest and highest score that one answer can have."""
    used = weights != 0.0
    amounts = weights[used] * most[used]
    lo, hi = float(amounts.clip(max=0.0).sum()), float(amounts.clip(min=0.0).sum())
    if lo == hi:
        return -math.inf, math.inf
    slack = ROUNDING * (hi - lo)
    return lo - slack if lo < 0.0 else 0.0, hi + slack if hi > 0.0 else 0.0
