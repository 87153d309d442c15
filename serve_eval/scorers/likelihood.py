"""What log-probabilities of a prompt say of a text, or of continuations of a context. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from serve_eval.schema import Outcome, PromptLogprobs, Score

TIED = "tied"


def negative_log_likelihood(told: PromptLogprobs) -> tuple[float, int]:
    """The sum of -log p over the tokens that have a probability (in nats), and their number. The
    first token of a text has none unless the server puts another before it.
    """
    return -math.fsum(told.values), len(told.values)


def is_whole(told: PromptLogprobs, text: str) -> bool:
    """Tell if the log-probabilities are those of all tokens of a text. The first one has none
    unless the server puts a token of its own before the text.
    """
    if told.offsets is not None:
        return bool(told.offsets) and told.offsets[0] == 0
    return "".join(told.tokens or ()).removeprefix(" ") == text.removeprefix(" ")


def continuation(told: PromptLogprobs, text: str, start: int) -> Sequence[float] | None:
    """The log-probabilities of the tokens from character `start` of the prompt `text` on; None
    where nothing tells where tokens begin, or nothing is left there. From the beginning on they are
    all that were told: a probe has found out that the first token is among them.

    A token that begins before `start` and ends behind it belongs to the continuation: so it does
    where the whole is tokenised at once, which is what the model saw. Where places are not told,
    the texts of the last tokens tell as well: a character of several tokens, which have no text,
    may stand before them.
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
    """Whether greedy decoding would have written the last `count` tokens; None where the server
    does not tell.
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
    """1 when the name of the likeliest continuation is the target: that of the greatest sum of
    log-probabilities.

    Of several with the same greatest sum the first counts, as in lm-evaluation-harness; the part
    `tied` says how often that decided.
    """
    sums = [math.fsum(values) for values in told]
    best = max(sums)
    answer = names[sums.index(best)]
    right = answer == target
    return Score(
        value=float(right),
        outcome=Outcome.CORRECT if right else Outcome.WRONG,
        answer=answer,
        parts={TIED: float(sums.count(best) > 1)},
    )
