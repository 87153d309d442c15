"""Score log-probabilities of texts as perplexity."""

from __future__ import annotations

import math
from collections.abc import Mapping

from serve_eval.schema import Metric, Outcome, Response, Sample, Score, Scored
from serve_eval.scorers.likelihood import negative_log_likelihood
from serve_eval.tasks._aggregations import ratio_of_sums

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
