"""Audit prompts: ask an endpoint for their tokens, to compare these with the other side.

The sides are an endpoint and either the files of its model or another endpoint.

Every server reports these counts, also one that gives no token ids.

The ids in an answer come first, as they are those that the engine got. Then come the routes that
only tokenize: vLLM's /tokenize, those of llama.cpp and of trtllm-serve, and /render.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.questions import GET_S
from serve_eval.client.wire_format.refusal import UNREADABLE, describe, shorten
from serve_eval.client.wire_format.wire import CHAT_COMPLETIONS, COMPLETIONS
from serve_eval.evidence.prompt_causes import compare
from serve_eval.evidence.prompt_tokens import (
    LocalTokenizer,
    PromptFinding,
    PromptReading,
    PromptSide,
    decode_piece,
)
from serve_eval.schema import Failure, Message, Prompt

PROMPTS: tuple[Prompt, ...] = (
    "The capital of France is",
    (Message(role="user", content="Name a colour."),),
    (Message(role="user", content="  Name a colour.\n\n"),),
    (
        Message(role="system", content="Answer in one word."),
        Message(role="user", content="Name a colour."),
        Message(role="assistant", content="Red"),
        Message(role="user", content="Name another."),
    ),
)
"""Prompts for an audit: a text, a chat, one with white space at its ends, and one of four turns."""


async def audit(
    endpoint: Client | PromptSide,
    other: Client | PromptSide,
    prompts: Sequence[Prompt] = PROMPTS,
    *,
    today: date | None = None,
) -> list[PromptFinding]:
    """Return the findings about each prompt at an endpoint, compared with another side.

    Prompts are asked one after the other, each with a few requests of one token at most. A failed
    request is never raised: its prompt is NOT_READ. `today` is the date in UTC unless given.
    """
    sides = [reader_of(one) if isinstance(one, Client) else one for one in (endpoint, other)]
    day = datetime.now(UTC).date() if today is None else today
    findings = []
    for prompt in prompts:
        found, expected = await asyncio.gather(*(side.read(prompt) for side in sides))
        if isinstance(other, LocalTokenizer):
            found = add_pieces(found, other)
        findings += compare(expected, found, prompt=prompt, today=day)
    return findings


def add_pieces(found: PromptReading, local: LocalTokenizer) -> PromptReading:
    """Return a reading with the texts of its ids and the first token as the files have them."""
    pieces = None if found.ids is None else local.pieces(found.ids)
    return replace(found, pieces=pieces or found.pieces)


LEAST, SAME_SHARE = 10, 0.95
"""Fewest prompts that are compared, and the share of them that has to differ by the same number of
tokens to have one cause."""


@dataclass(frozen=True, slots=True)
class CountedGap:
    """The difference of the counts: `tokens` in `prompts` of `of` prompts.

    `tokens` is positive if the second side counts more, 0 if both always count the same, and None
    if the difference is not the same in most prompts.
    """

    tokens: int | None
    prompts: int
    of: int

    @property
    def amount(self) -> str:
        """The size and the direction of the difference."""
        if not self.tokens:
            return "other numbers of tokens"
        word = "more" if self.tokens > 0 else "fewer"
        return f"{abs(self.tokens)} token{'s' if abs(self.tokens) > 1 else ''} {word}"

    @property
    def cause(self) -> str:
        """The probable cause, for the side that counts otherwise."""
        if self.tokens is None:
            return "another tokenizer, or white space is stripped"
        if self.tokens == 1:
            return "it adds the first token twice, or one that the other side does not add"
        if self.tokens == -1:
            return "the first token is missing"
        return "another chat template, such as one that " + (
            "adds a system message or a date" if self.tokens > 0 else "drops a system message"
        )


def find_gap(gaps: Sequence[int]) -> CountedGap | None:
    """Return the difference of two sides' counts, or None if too few prompts are compared.

    `gaps` has by how many tokens the second side counts each prompt longer.
    """
    if len(gaps) < LEAST:
        return None
    gap, same = Counter(gaps).most_common(1)[0]
    if not any(gaps):
        return CountedGap(0, same, len(gaps))
    if gap and same >= SAME_SHARE * len(gaps):
        return CountedGap(gap, same, len(gaps))
    return CountedGap(None, sum(one != 0 for one in gaps), len(gaps))


RETURN_FIELD = "return_token_ids"
TOKENIZE, INTERNAL = "/tokenize", "/_internal/tokenize"
"""The routes of vLLM (and llama.cpp) and of trtllm-serve, which takes texts only."""


class ReturnedIds(NamedTuple):
    """The token ids that an answer contains, of its prompt and of its text, if it does."""

    prompt: list[int] | None
    answer: list[int] | None


class TokenizedPrompt(NamedTuple):
    """The tokens that a tokenizing route gives for a prompt, with their texts if it has them."""

    ids: list[int]
    pieces: list[str] | None


def read_ids(told: object) -> list[int] | None:
    """Return token ids, or None if it is no list of them or an empty one."""
    if not isinstance(told, list) or not told:
        return None
    return told if all(type(one) is int for one in told) else None


def read_returned(choice: Mapping[str, Any], whole: Mapping[str, Any]) -> ReturnedIds:
    """Return the ids in a choice of an answer. Those of a prompt may be outside the choice."""
    prompt = choice.get("prompt_token_ids") or whole.get("prompt_token_ids")
    return ReturnedIds(read_ids(prompt), read_ids(choice.get("token_ids")))


def read_tokenized(body: object) -> TokenizedPrompt | None:
    """Return the tokens in a reply: vLLM's ids, or llama.cpp's objects with id and piece."""
    told = body.get("tokens") if isinstance(body, dict) else None
    if (ids := read_ids(told)) is not None:
        assert isinstance(body, dict)
        return TokenizedPrompt(ids, _pieces(body.get("token_strs"), len(ids)))
    if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
        return None
    if (ids := read_ids([one.get("id") for one in told])) is None:
        return None
    return TokenizedPrompt(ids, _pieces([_piece(one.get("piece")) for one in told], len(ids)))


def _pieces(told: object, length: int) -> list[str] | None:
    if not isinstance(told, list) or len(told) != length:
        return None
    if not all(isinstance(one, str) for one in told):
        return None
    return [decode_piece(one) for one in told]


def _piece(told: object) -> object:
    """Return the text of a token of llama.cpp, which writes a part of a character as bytes."""
    if isinstance(told, list) and all(type(one) is int and 0 <= one < 256 for one in told):
        return bytes(told).decode(errors="replace")
    return told


def read_rendered(body: object) -> list[int] | None:
    """Return the ids in a reply of /render: one request, or a list of them for completions."""
    if isinstance(body, list) and body:
        body = body[0]
    return read_ids(body.get("token_ids")) if isinstance(body, dict) else None


def read_count(body: object, *names: str) -> int | None:
    """Return the number under these names in a reply, or None if there is none above 0."""
    for name in names:
        body = body.get(name) if isinstance(body, dict) else None
    return body if type(body) is int and body > 0 else None


def tokenizing_body(prompt: Prompt) -> dict[str, Any]:
    """Return the fields that ask vLLM's /tokenize for the tokens of a prompt."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    return {"messages": turns_of(prompt), "add_generation_prompt": True}


def turns_of(prompt: Prompt) -> list[dict[str, str]]:
    """Return a prompt as the messages of a chat request."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": turn.role, "content": turn.text} for turn in prompt]


def describe_difference(one: list[int], other: list[int]) -> str:
    """Return in words where two different lists of ids differ first."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is None:
        return f"{len(one)} of them, not {len(other)}"
    return f"{one[at]}, not {other[at]}, at position {at}"


MOST_REQUESTS, MOST_ANSWERS = 8, 2
"""Requests that one prompt can take, and those of them that generate a token."""
RENDER = "/render"
COUNT = "/messages/count_tokens"
APPLY = "/apply-template"


class PostReply(NamedTuple):
    """The status of a reply with its JSON body, or why there is none. Status 0: no reply."""

    status: int
    body: object = None
    problem: str = ""


Post = Callable[[str, Mapping[str, Any]], Awaitable[PostReply]]
"""Sends a JSON body to a path below the host."""


@dataclass(frozen=True, kw_only=True)
class PromptReader:
    """Reads prompts at an endpoint through `post`.

    `base_path` is the path up to /v1, `side` the endpoint's name in sentences.
    """

    post: Post
    side: str
    model: str
    base_path: str
    max_tokens_field: str = "max_tokens"

    async def read(self, prompt: Prompt) -> PromptReading:
        """Return the tokens of a prompt. Never raises for a request that fails."""
        answer = await self._ask(prompt)
        counted = read_count(answer.body, "usage", "prompt_tokens")
        returned = _read_returned(answer.body)
        tokenized, source = await self._tokenize(prompt, known=returned is not None)
        pieces = None
        if tokenized is not None and (returned is None or returned == tokenized.ids):
            pieces = tokenized.pieces
        ids = returned if returned is not None or tokenized is None else tokenized.ids
        if counted is None and not isinstance(prompt, str):
            counted = await self._count(prompt)
        return PromptReading(
            side=self.side,
            ids=None if ids is None else tuple(ids),
            count=counted,
            pieces=None if pieces is None else tuple(pieces),
            source=RETURN_FIELD if returned is not None else source,
            problem="" if ids or counted else answer.problem or "answers count no prompt tokens",
        )

    async def count_by_route(self, prompt: Prompt) -> int | None:
        """Return the number of tokens of a prompt, by a route that generates nothing, or None.

        Never raises for a request that fails.
        """
        tokenized, _ = await self._tokenize(prompt, known=False, texts=False)
        if tokenized is not None:
            return len(tokenized.ids)
        return None if isinstance(prompt, str) else await self._count(prompt)

    async def _ask(self, prompt: Prompt) -> PostReply:
        """Return an answer of one token, with the ids of its prompt if the field is taken."""
        route = COMPLETIONS if isinstance(prompt, str) else CHAT_COMPLETIONS
        body = {**self._body(prompt), self._limit(prompt): 1, "temperature": 0}
        answer = await self.post(self.base_path + route, {**body, RETURN_FIELD: True})
        if answer.status in (400, 422, 500):
            return await self.post(self.base_path + route, body)
        return answer

    def _limit(self, prompt: Prompt) -> str:
        return "max_tokens" if isinstance(prompt, str) else self.max_tokens_field

    def _body(self, prompt: Prompt) -> dict[str, Any]:
        if isinstance(prompt, str):
            return {"model": self.model, "prompt": prompt}
        return {"model": self.model, "messages": turns_of(prompt)}

    @property
    def _root(self) -> str:
        return self.base_path.removesuffix("/v1")

    async def _tokenize(
        self, prompt: Prompt, *, known: bool, texts: bool = True
    ) -> tuple[TokenizedPrompt | None, str]:
        """Return the tokens that a route gives, with their `texts` if it has them, and the route.

        With `known` ids only vLLM's route is asked, which also has their texts.
        """
        asked = {"model": self.model, **tokenizing_body(prompt)}
        asked["return_token_strs"] = texts
        reply = await self.post(self._root + TOKENIZE, asked)
        if found := _read_tokenized(reply):
            return found, TOKENIZE
        if known:
            return None, ""
        if reply.status == 200 and (found := await self._tokenize_by_llama_cpp(prompt)):
            return found, TOKENIZE
        if isinstance(prompt, str):
            reply = await self.post(self._root + INTERNAL, {"prompt": prompt})
            if found := _read_tokenized(reply):
                return found, INTERNAL
        return await self._render(prompt)

    async def _tokenize_by_llama_cpp(self, prompt: Prompt) -> TokenizedPrompt | None:
        """Return the tokens that llama.cpp gives, whose route takes the field `content`."""
        text: object = prompt
        if not isinstance(prompt, str):
            reply = await self.post(self._root + APPLY, {"messages": turns_of(prompt)})
            text = reply.body.get("prompt") if isinstance(reply.body, dict) else None
        if not isinstance(text, str):
            return None
        asked = {"content": text, "add_special": True, "parse_special": True, "with_pieces": True}
        return _read_tokenized(await self.post(self._root + TOKENIZE, asked))

    async def _render(self, prompt: Prompt) -> tuple[TokenizedPrompt | None, str]:
        route = COMPLETIONS if isinstance(prompt, str) else CHAT_COMPLETIONS
        body = {**self._body(prompt), self._limit(prompt): 1}
        reply = await self.post(self.base_path + route + RENDER, body)
        ids = read_rendered(reply.body) if reply.status == 200 else None
        return (None, "") if ids is None else (TokenizedPrompt(ids, None), route + RENDER)

    async def _count(self, prompt: Prompt) -> int | None:
        """Return the count of the route of Anthropic's API, which vLLM and llama.cpp have too."""
        body = {**self._body(prompt), "max_tokens": 1}
        reply = await self.post(self.base_path + COUNT, body)
        return read_count(reply.body, "input_tokens") if reply.status == 200 else None


def _read_returned(body: object) -> list[int] | None:
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else {}
    return read_returned(first if isinstance(first, dict) else {}, body).prompt


def _read_tokenized(reply: PostReply) -> TokenizedPrompt | None:
    return read_tokenized(reply.body) if reply.status == 200 else None


def reader_of(client: Client, *, side: str | None = None, timeout_s: float = GET_S) -> PromptReader:
    """Return the reader of a client's endpoint. Each request is sent once, within `timeout_s`."""

    async def post(path: str, body: Mapping[str, Any]) -> PostReply:
        content = msgspec.json.encode(body)
        reply = await client.exchange("POST", path, content, timeout_s=timeout_s)
        if isinstance(reply, Failure):
            return PostReply(0, problem=reply.message)
        told = f"HTTP {reply.status}: {shorten(client.masking.message(describe(reply.content)))}"
        if reply.error is not None:
            return PostReply(0, problem=client.masking.message(f"{told}, then {reply.error}"))
        try:
            parsed = msgspec.json.decode(reply.content)
        except UNREADABLE:
            return PostReply(reply.status, problem=told)
        return PostReply(reply.status, parsed, "" if reply.status == 200 else told)

    url = client.endpoint.base_url
    return PromptReader(
        post=post,
        side=url if side is None else side,
        model=client.endpoint.model or "",
        base_path=urlsplit(url).path.rstrip("/"),
        max_tokens_field=client.max_tokens_field,
    )
