"""Aggregate scores by other ways than the mean. Pure.

`schema.Aggregation` describes which features such aggregations exclude.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

from serve_eval.errors import ServeEvalError
from serve_eval.schema import Aggregation, Sample, Scored


def mean_of_means(name: str, *levels: Callable[[Sample], str]) -> Aggregation:
    """Return the nested mean over groups, so that every group of a level has the same weight.

    It is the mean over the groups of the first level of the mean over those of the next, and so on
    down to the samples: `mean_of_means("mean of 6 groups", group_of, data_set_of)`.
    """

    def of(scored: Scored) -> float:
        leaves: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for sample, score in scored:
            leaves[tuple(level(sample) for level in levels)].append(score.value)
        means = {place: _mean(values) for place, values in leaves.items()}
        while () not in means:
            above: dict[tuple[str, ...], list[float]] = defaultdict(list)
            for place, mean in means.items():
                above[place[:-1]].append(mean)
            means = {place: _mean(values) for place, values in above.items()}
        return means[()]

    return Aggregation(name=name, of=of, monotone=True)


def ratio_of_sums(
    name: str, over: str, under: str, *, then: Callable[[float], float] = float
) -> Aggregation:
    """Return `then` of the sum of part `over` divided by the sum of part `under`.

    Every score has both parts. The acceptance length is tokens divided by steps. Perplexity is
    `math.exp` of negative log-likelihoods divided by tokens. A missing answer leaves both sums
    unknown, so there are no bounds. Raises ServeEvalError if the lower sum is 0.
    """

    def of(scored: Scored) -> float:
        pairs = [(score.parts[over], score.parts[under]) for _, score in scored]
        total = math.fsum(below for _, below in pairs)
        if total == 0.0:
            raise ServeEvalError(
                f"{name}: the answers have no {under}",
                hint="Check that the endpoint reports the values that are summed.",
            )
        return then(math.fsum(above for above, _ in pairs) / total)

    return Aggregation(name=name, of=of)


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return math.fsum(known) / len(known)
