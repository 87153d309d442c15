"""Find the first token in which two endpoints differ, and how sure each was of its token.

Both are asked the same prompt again, with log-probabilities. The numerics of a kernel or a batch
decide only between tokens that are nearly equally likely. A wrong cache or weight also changes
other tokens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.wire_format import wire
from serve_eval.evaluation.engine.request import request_of
from serve_eval.schema import Divergence, Failure, Request, Sample, Task

NEAR_TIE_NATS = 0.1
"""Tokens whose log-probabilities differ by less than this many nats are a near tie."""
TOP = 5
"""Alternatives requested for each token; OpenAI's completions return no more."""
TOGETHER = 8
"""Prompts that are examined at the same time."""


class Token(NamedTuple):
    """A generated token, its log-probability, and those of the likeliest tokens at its position."""

    text: str
    logprob: float
    top: Mapping[str, float]


class Unreadable(Exception):
    """The reason why a response lacks the requested log-probabilities."""


async def look(task: Task, sample: Sample, a: Client, b: Client) -> Divergence:
    """Ask both endpoints for the sample again, and return their first divergence."""
    request = request_of(task, sample)
    try:
        one, other = await asyncio.gather(_tokens(request, a), _tokens(request, b))
    except Unreadable as error:
        return Divergence(kind="unknown", why=str(error))
    return first_divergence(one, other)


async def look_at_all(task: Task, samples: list[Sample], a: Client, b: Client) -> list[Divergence]:
    """Return the divergences of several samples, asked TOGETHER at a time.

    If the first response has no log-probabilities, the other samples are not asked.
    """
    if task.prompt_logprobs or not samples or samples[0].choices:
        return [
            Divergence(kind="unknown", why="the task requests probabilities, not an answer")
            for _ in samples
        ]
    found = [await look(task, samples[0], a, b)]
    if found[0].kind == "unknown":
        return found * len(samples)
    for start in range(1, len(samples), TOGETHER):
        found += await asyncio.gather(
            *(look(task, sample, a, b) for sample in samples[start : start + TOGETHER])
        )
    return found


def first_divergence(one: list[Token], other: list[Token]) -> Divergence:
    """Return the first divergence of two answers. Pure.

    A token that is not among the likeliest of the other endpoint is less likely there than each of
    them. The gap is then at least the one to the least likely of them.
    """
    place = next(
        (i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x.text != y.text), None
    )
    if place is None and len(one) == len(other):
        return Divergence(kind="same again")
    if place is None:
        longer = "A" if len(one) > len(other) else "B"
        return Divergence(
            kind="unknown",
            token=min(len(one), len(other)),
            why=f"the shorter answer is the beginning of the answer of {longer}",
        )
    x, y = one[place], other[place]
    gaps = _gap(x, y.text), _gap(y, x.text)
    if max(gap for gap, _ in gaps) >= NEAR_TIE_NATS:
        kind = "confident"
    elif all(known for _, known in gaps):
        kind = "near tie"
    else:
        kind = "unknown"
    return Divergence(
        kind=kind,  # type: ignore[arg-type]
        token=place,
        tokens=(x.text, y.text),
        gaps=(round(gaps[0][0], 6), round(gaps[1][0], 6)),
        why=(
            ""
            if kind != "unknown"
            else "the response has no log-probability for the token of the other endpoint"
        ),
    )


def _gap(token: Token, text: str) -> tuple[float, bool]:
    """Return by how many nats a token was preferred to `text`, and True if that is exact.

    The number is a lower bound if the second value is False.
    """
    if text in token.top:
        return token.logprob - token.top[text], True
    return max(0.0, token.logprob - min(token.top.values(), default=token.logprob)), False


async def _tokens(request: Request, client: Client) -> list[Token]:
    """Return the tokens of an answer to the request. Raises Unreadable."""
    chat = not isinstance(request.prompt, str)
    over: dict[str, object] = {"logprobs": True, "top_logprobs": TOP} if chat else {"logprobs": TOP}
    body = wire.encode(
        request, client.endpoint.model or "", max_tokens_field=client.max_tokens_field, over=over
    )
    path = urlsplit(client.endpoint.base_url).path + wire.route(request.prompt)
    reply = await client.exchange("POST", path, body, timeout_s=client.limits.sample_timeout_s)
    if isinstance(reply, Failure):
        raise Unreadable(client.masking.message(reply.message))
    if reply.error is not None:
        raise Unreadable(client.masking.message(str(reply.error)))
    if reply.status != 200:
        raise Unreadable(
            f"HTTP {reply.status}: {wire.describe(reply.content, client.masking.message)}"
        )
    try:
        tokens = read(reply.content)
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
    ) as error:
        raise Unreadable("the answer has no log-probabilities") from error
    # Together the pieces may form a secret.
    texts = client.masking.pieces([token.text for token in tokens])
    return [token._replace(text=text) for token, text in zip(tokens, texts, strict=True)]


def read(content: bytes) -> list[Token]:
    """Return the tokens of a response of /v1/completions or /v1/chat/completions.

    Raises ValueError and similar errors if it has no log-probabilities.
    """
    told = msgspec.json.decode(content)["choices"][0]["logprobs"]
    if not isinstance(told, dict):
        raise ValueError("no log-probabilities")
    if told.get("content") is not None:
        found = [
            Token(
                one["token"],
                float(one["logprob"]),
                {t["token"]: float(t["logprob"]) for t in one["top_logprobs"] or ()},
            )
            for one in told["content"]
        ]
    else:
        tops = told.get("top_logprobs") or [None] * len(told["tokens"])
        rows = zip(told["tokens"], told["token_logprobs"], tops, strict=True)
        found = [
            Token(text, float(value), {name: float(number) for name, number in (top or {}).items()})
            for text, value, top in rows
        ]
    if not found or not all(math.isfinite(token.logprob) for token in found):
        raise ValueError("no tokens")
    return found
