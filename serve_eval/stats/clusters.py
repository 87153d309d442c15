"""Number the clusters of prompts: groups whose prompts may be answered right or wrong together.

Questions about one passage share its misreading, utterances of a speaker his accent. Every test
that takes such prompts for independent counts one mistake several times (Miller 2024, "Adding Error
Bars to Evals", section 2.2; Cameron and Miller 2015, "A Practitioner's Guide to Cluster-Robust
Inference"). Here the cluster is the unit instead: its sides are exchanged, its differences summed,
as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import IntArray


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
