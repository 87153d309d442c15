"""Aggregate scores by other ways than the mean, such as the perplexity of texts.

`schema.Aggregation` describes which features such aggregations exclude.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from serve_eval.errors import ServeEvalError
from serve_eval.schema import Aggregation, Metric, Outcome, Response, Sample, Score, Scored, Sums
from serve_eval.scorers.likelihood import negative_log_likelihood


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


def of_sums(name: str, sums: Sums) -> Aggregation:
    """Return the function of sums over all samples as an aggregation.

    Every score has the parts. A missing answer leaves the sums unknown, so there are no bounds.
    """

    def of(scored: Scored) -> float:
        rows = [[score.parts[part] for part in sums.parts] for _, score in scored]
        return sums.value([math.fsum(column) for column in zip(*rows, strict=True)])

    return Aggregation(name=name, of=of, sums=sums)


def ratio_of_sums(
    name: str,
    over: str,
    under: str,
    *,
    then: Callable[[float], float] = float,
    limits: tuple[float, float] | None = None,
) -> Aggregation:
    """Return `then` of the sum of part `over` divided by the sum of part `under`.

    The word error rate is edits divided by words. Perplexity is `math.exp` of negative
    log-likelihoods divided by tokens. Raises ServeEvalError if the lower sum is 0.
    """

    def value(sums: Sequence[float]) -> float:
        above, below = sums
        if below == 0.0:
            raise ServeEvalError(
                f"{name}: the answers have no {under}",
                hint="Check that the endpoint reports the values that are summed.",
            )
        return then(above / below)

    return of_sums(name, Sums(parts=(over, under), value=value, limits=limits))


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return math.fsum(known) / len(known)


NATS, TOKENS = "nats", "tokens"
CORPUS = ratio_of_sums("perplexity of all tokens", NATS, TOKENS, then=math.exp)
NO_GOLD = "the log-probability of a text is no answer"
METRIC = Metric(name="perplexity", higher_is_better=False, lo=1.0, hi=None, scale=1.0)


def score(sample: Sample, response: Response) -> Score:
    """Return the exponential of the mean of -log p over the tokens of a text."""
    told = response.prompt_logprobs
    assert told is not None  # without them the client returns a failure
    nats, tokens = negative_log_likelihood(told)
    value = math.exp(nats / tokens) if tokens else 1.0
    return Score(
        value=value,
        outcome=Outcome.PARTIAL,
        answer=f"{value:.4f}",
        parts={NATS: nats, TOKENS: float(tokens)},
    )


def all_tokens(scored: Scored) -> Mapping[str, float]:
    """Return the perplexity of all tokens together, in which long texts weigh more."""
    return {CORPUS.name: CORPUS.of(scored)}


def answers(sample: Sample) -> tuple[str, str]:
    """Return the log-probability of every token of an expected and of an unexpected text."""
    return "-0.5", "-3"
