"""Score texts and continuations by log-probabilities of a prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

from serve_eval.schema import PromptLogprobs, Score
from serve_eval.scorers._expected import grade_value

TIED = "tied"


def negative_log_likelihood(told: PromptLogprobs) -> tuple[float, int]:
    """Return the sum of -log p over the tokens with a probability (in nats), and their number.

    The first token of a text has none unless the server puts another before it.
    """
    return -math.fsum(told.values), len(told.values)


def is_whole(told: PromptLogprobs, text: str) -> bool:
    """Return True if the log-probabilities are those of all tokens of a text.

    The first token has none unless the server puts a token of its own before the text.
    """
    if told.offsets is not None:
        return bool(told.offsets) and told.offsets[0] == 0
    return "".join(told.tokens or ()).removeprefix(" ") == text.removeprefix(" ")


def continuation(told: PromptLogprobs, text: str, start: int) -> Sequence[float] | None:
    """Return the log-probabilities of the tokens from character `start` of the prompt `text` on.

    None if it is unknown where tokens begin, or if no token is left. From the beginning on they are
    all that were reported: a probe has found that the first token is among them.

    A token that begins before `start` and ends after it belongs to the continuation, as it does if
    the whole is tokenised together, which is what the model saw. If places are not reported, the
    texts of the last tokens are used: characters of several tokens, which have no text, may precede
    them.
    """
    if not start:
        return told.values
    if told.offsets is None:
        return _at_end(told, text, start)
    first = next((i for i, offset in enumerate(told.offsets) if offset >= start), len(told.offsets))
    if first and (first == len(told.offsets) or told.offsets[first] > start):
        first -= 1
    return told.values[first:] or None


def is_likeliest(told: PromptLogprobs, count: int) -> bool | None:
    """Return True if greedy decoding would have written the last `count` tokens.

    None if the server does not report it.
    """
    return None if told.likeliest is None else "0" not in told.likeliest[-count:]


def _at_end(told: PromptLogprobs, text: str, start: int) -> Sequence[float] | None:
    end = ""
    for count, token in enumerate(reversed(told.tokens or ()), 1):
        end = token + end
        if not text.endswith(end):
            return None
        if len(end) >= len(text) - start:
            return told.values[-count:]
    return None


def likeliest(told: Sequence[Sequence[float]], names: Sequence[str], target: str) -> Score:
    """Score 1 if the likeliest continuation, by its sum of log-probabilities, is the target.

    If several have the same greatest sum the first counts, as in lm-evaluation-harness; the part
    `tied` says how often that decided.
    """
    sums = [math.fsum(values) for values in told]
    best = max(sums)
    answer = names[sums.index(best)]
    return grade_value(float(answer == target), answer, {TIED: float(sums.count(best) > 1)})
