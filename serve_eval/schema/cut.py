"""The cause of a cut answer: the requested limit, the window of the server, or a stop string."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from serve_eval.schema.exchange import Response
from serve_eval.schema.sample import SamplingParams
from serve_eval.schema.score import Outcome

FEW_TOKENS = 2
"""Value of max_tokens up to which each answer is cut by design."""
UNREADABLE = frozenset({Outcome.UNPARSED, Outcome.EMPTY, Outcome.REASONING_ONLY})
"""Outcomes of an answer in which no result was found."""
_WINDOW = ("context", "model_length", "modellength")
"""Parts of finish reasons, in lower case, by which servers name their window."""


class Cut(StrEnum):
    """The cause of a cut answer.

    WINDOW is the server's limit for prompt and answer together. STOP_STRING ended the answer before
    it had a result.
    """

    MAX_TOKENS = "max_tokens"
    WINDOW = "window"
    STOP_STRING = "stop_string"


def find_cut(response: Response, outcome: Outcome, asked: SamplingParams) -> Cut | None:
    """Return what cut an answer off, or None if it ended, or if `asked` wants a token or two.

    A cut is the server's own if its word for it says so, or if it comes before max_tokens: some
    servers count thoughts apart, so that the tokens of both must be fewer. Without a count it is
    taken to be at max_tokens. A stop string ends most answers to prompts of a base model, so it cut
    only those in which no result was found.
    """
    if response.prompt_logprobs is not None or response.choice_logprobs is not None:
        return None
    if response.truncated:
        if asked.max_tokens <= FEW_TOKENS:
            return None
        return Cut.WINDOW if _ends_early(response, asked.max_tokens) else Cut.MAX_TOKENS
    if response.looping or outcome not in UNREADABLE:
        return None
    within = response.stopped_in_reasoning and bool(asked.stop)
    return Cut.STOP_STRING if within or response.stop_reason is not None else None


def read_limit(fingerprint: Mapping[str, object]) -> int | None:
    """Return the max_tokens of a protocol, whose fingerprint may hold it as a text, or None."""
    told = str(fingerprint.get("max_tokens"))
    return int(told) if told.isdecimal() else None


def raise_limit(max_tokens: int) -> int:
    """Return the limit to try where this one cut answers: nothing else is known of their length."""
    return 2 * max_tokens


def _ends_early(response: Response, max_tokens: int) -> bool:
    word = response.server_finish or ""
    if any(sign in word.lower() for sign in _WINDOW):
        return True
    usage = response.usage
    counted = usage.completion_tokens + (usage.reasoning_tokens or 0)
    return 0 < counted < max_tokens
