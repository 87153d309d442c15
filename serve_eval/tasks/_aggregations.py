"""Values that are no plain mean of a task's scores. Pure; what they cost elsewhere is told in
`schema.Aggregation`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

from serve_eval.errors import ServeEvalError
from serve_eval.schema import Aggregation, Sample, Scored


def mean_of_means(name: str, *levels: Callable[[Sample], str]) -> Aggregation:
    """The mean over the groups of the first level of the mean over those of the next, and so on
    down to the samples, so that every group of a level weighs the same: `mean_of_means("mean of 6
    groups", group_of, data_set_of)`.
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
    """`then` of the sum of the part `over` by that of the part `under`, which every score has: the
    acceptance length is tokens by steps, and perplexity `math.exp` of negative log-likelihoods by
    tokens.

    A missing answer leaves both sums unknown: there are no bounds. Raises ServeEvalError when the
    lower sum is 0.
    """

    def of(scored: Scored) -> float:
        pairs = [(score.parts[over], score.parts[under]) for _, score in scored]
        total = math.fsum(below for _, below in pairs)
        if total == 0.0:
            raise ServeEvalError(
                f"{name}: the answers have no {under}",
                hint="Does the endpoint report what is summed?",
            )
        return then(math.fsum(above for above, _ in pairs) / total)

    return Aggregation(name=name, of=of)


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return math.fsum(known) / len(known)
