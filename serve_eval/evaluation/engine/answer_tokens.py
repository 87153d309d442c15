"""Ask for an answer with the log-probabilities of its tokens, and read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.wire_format import fields, wire
from serve_eval.schema import Failure, Request, Usage

REFUSALS = (400, 401, 403, 404, 405, 413, 422, 501)
"""Statuses that the same request would get again."""
TOP = 5
"""Alternatives requested for each token; OpenAI's completions return no more."""
UNREADABLE = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
)


class AnswerToken(NamedTuple):
    """A generated token, its log-probability, and those of the likeliest tokens at its position."""

    text: str
    logprob: float
    top: Mapping[str, float]


class AnswerTokens(NamedTuple):
    """The listed tokens of an answer, its whole text, and what the server says of it."""

    tokens: tuple[AnswerToken, ...]
    text: str
    usage: Usage = Usage()
    fingerprint: str | None = None


class Unreadable(Exception):
    """The reason why a response lacks the requested log-probabilities.

    `text` is the answer if there was one without them. `refused`: the server will refuse the same
    request again.
    """

    def __init__(self, why: str, *, text: str | None = None, refused: bool = False) -> None:
        super().__init__(why)
        self.text, self.refused = text, refused


async def ask_tokens(request: Request, client: Client) -> AnswerTokens:
    """Return the tokens of one answer to the request, which is sent once. Raises Unreadable."""
    chat = not isinstance(request.prompt, str)
    over: dict[str, object] = {"logprobs": True, "top_logprobs": TOP} if chat else {"logprobs": TOP}
    body = await client.encoder.encode(request, over=over)
    path = urlsplit(client.endpoint.base_url).path + wire.route(request.prompt)
    reply = await client.exchange("POST", path, body, timeout_s=client.limits.sample_timeout_s)
    if isinstance(reply, Failure):
        raise Unreadable(client.masking.message(reply.message))
    if reply.error is not None:
        raise Unreadable(client.masking.message(str(reply.error)))
    if reply.status != 200:
        raise Unreadable(
            f"HTTP {reply.status}: {wire.describe(reply.content, client.masking.message)}",
            refused=reply.status in REFUSALS,
        )
    try:
        found = read_answer(reply.content)
    except UNREADABLE as error:
        text = _read_text(reply.content)
        raise Unreadable("the answer has no log-probabilities", text=text) from error
    # Together the pieces may form a secret.
    texts = client.masking.pieces([token.text for token in found.tokens])
    tokens = [token._replace(text=text) for token, text in zip(found.tokens, texts, strict=True)]
    return found._replace(tokens=tuple(tokens))


def read_answer(content: bytes) -> AnswerTokens:
    """Return the tokens of a response of /v1/completions or /v1/chat/completions.

    An answer that ended at once has none. Raises ValueError and similar errors if there is a text
    without log-probabilities.
    """
    body = msgspec.json.decode(content)
    choice = body["choices"][0]
    text = choice["text"] if "text" in choice else _read_message(choice["message"])
    tokens = _read_tokens(choice.get("logprobs"))
    if text and not tokens:
        raise ValueError("no log-probabilities")
    fingerprint = body.get("system_fingerprint")
    return AnswerTokens(
        tokens=tuple(tokens),
        text=text or "",
        usage=fields.usage(body.get("usage")),
        fingerprint=fingerprint if isinstance(fingerprint, str) else None,
    )


def _read_message(message: Mapping[str, Any]) -> str | None:
    """Return all that a message says: the first tokens of a model that thinks are thoughts."""
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    return (thoughts or "") + (message.get("content") or "") if thoughts else message.get("content")


def _read_tokens(listed: Any) -> list[AnswerToken]:
    if listed is None:
        return []
    if listed.get("content") is not None:
        found = [
            AnswerToken(
                one["token"],
                float(one["logprob"]),
                {t["token"]: float(t["logprob"]) for t in one["top_logprobs"] or ()},
            )
            for one in listed["content"]
        ]
    else:
        tops = listed.get("top_logprobs") or [None] * len(listed["tokens"])
        rows = zip(listed["tokens"], listed["token_logprobs"], tops, strict=True)
        found = [
            AnswerToken(
                text, float(value), {name: float(number) for name, number in (top or {}).items()}
            )
            for text, value, top in rows
        ]
    if not all(math.isfinite(token.logprob) for token in found):
        raise ValueError("a log-probability is not finite")
    return found


def _read_text(content: bytes) -> str | None:
    """Return the text of an answer; None if there is none."""
    try:
        choice = msgspec.json.decode(content)["choices"][0]
        text = choice["text"] if "text" in choice else _read_message(choice["message"])
    except UNREADABLE:
        return None
    return text if isinstance(text, str) else None
