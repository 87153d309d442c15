"""Ask one server the probes, with the log-probabilities of the tokens in its answers."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.wire_format import bodies, refusal, wire
from serve_eval.evaluation.engine.send import QUESTION
from serve_eval.evaluation.engine.send import TOKENS as THOUGHT_TOKENS
from serve_eval.schema import (
    Failure,
    Message,
    ProbeReading,
    ProbeRoute,
    Prompt,
    Request,
    Route,
    SamplingDefaults,
    SamplingParams,
    TokenReading,
    Usage,
)

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
    if chat and client.chat_route is not Route.CHAT:
        told = f"log-probabilities are read from chat only, not from /v1{client.chat_route}"
        raise Unreadable(told, refused=True)
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
            f"HTTP {reply.status}: {refusal.describe(reply.content, client.masking.message)}",
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
    tokens = read_tokens(choice.get("logprobs"))
    if text and not tokens:
        raise ValueError("no log-probabilities")
    fingerprint = body.get("system_fingerprint")
    return AnswerTokens(
        tokens=tuple(tokens),
        text=text or "",
        usage=bodies.usage(body.get("usage")),
        fingerprint=fingerprint if isinstance(fingerprint, str) else None,
    )


def _read_message(message: Mapping[str, Any]) -> str | None:
    """Return all that a message says: the first tokens of a model that thinks are thoughts."""
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    return (thoughts or "") + (message.get("content") or "") if thoughts else message.get("content")


def read_tokens(listed: Any) -> list[AnswerToken]:
    """Return the tokens of the `logprobs` of a choice. Raises ValueError and similar errors."""
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


SALT = "cache_salt"
TOKENS = 2
PAUSE_S = 0.5
ATTEMPTS = 3
LEAST_UNLIKELY, UNLIKELY = 3, 0.2
"""Number and share of first tokens, not the likeliest of their lists, that show sampling."""
FIRST = "The quick brown fox"
"""Text of the requests that find out which questions a server takes."""
CONTINUE = "Continue this text. Write only what follows.\n\n"
NO_THOUGHTS = {"chat_template_kwargs": {"enable_thinking": False}}
WRITE = "Write a text."
"""Instructions for servers that answer only chats."""


@dataclass(slots=True, kw_only=True)
class AskedServer:
    """A server, the way of asking it, and what it has answered so far.

    `salted`: each question has a cache_salt of its own, so that nothing comes from the prefix
    cache. Otherwise each question is asked before, and that answer is not used, so that all of its
    blocks come from the cache if there is one. `lists` is False if it lists no tokens. `chosen`
    counts listed first tokens, and `unlikely` those of them that were not the likeliest. A request
    that fails is sent up to `attempts` times. `defaults` is what the server adds to requests (None:
    not probed). `heard` is called with the answer to each probe, if there is one.
    """

    name: str
    client: Client
    in_flight: int
    route: ProbeRoute = ProbeRoute.TEXT
    salted: bool = True
    lists: bool = True
    attempts: int = ATTEMPTS
    requests: int = 0
    tokens: int = 0
    unanswered: int = 0
    chosen: int = 0
    unlikely: int = 0
    why: str = ""
    fingerprint: str | None = None
    defaults: SamplingDefaults | None = None
    heard: Callable[[ProbeReading | None], None] | None = None

    async def settle(self, prompt: str, *, route: ProbeRoute | None = None) -> None:
        """Find out which questions the server takes.

        `route` is that of the reference's server (None: texts, or else chats). Answers
        to the two cannot be compared. Raises Unreadable if it takes none.
        """
        last = Unreadable("")
        for one in (ProbeRoute.TEXT, ProbeRoute.CHAT) if route is None else (route,):
            for salted in (True, False):
                self.route, self.salted, self.lists = one, salted, True
                try:
                    await self._try(prompt, TOKENS)
                except Unreadable as error:
                    last = error
                    if error.text is not None:
                        self.lists = False
                        return
                else:
                    return
        raise last

    async def thinks_first(self) -> bool:
        """Return True if answers in this way of asking begin with thoughts.

        An easy question shows it. A chat that does not answer one counts too: its thoughts may
        have no tag before their end.
        """
        continues = self.route is ProbeRoute.PREFIX
        asked, extra = _write_probe(FIRST, self.route)
        if not continues:
            asked = (Message(role="user", content=QUESTION),)
        sampling = SamplingParams(max_tokens=THOUGHT_TOKENS)
        self.requests += 1
        found = await self.client.send(
            Request(sample_id="probe", prompt=asked, sampling=sampling, extra=extra), once=True
        )
        if isinstance(found, Failure):
            return False
        self.tokens += found.usage.prompt_tokens + found.usage.completion_tokens
        shown = found.reasoning or found.thoughts_ended or found.usage.reasoning_tokens
        return bool(shown) or (found.truncated and not continues)

    async def read_all(
        self, prompts: Sequence[str], *, at_once: int | None = None
    ) -> list[ProbeReading | None]:
        """Return the answers to prompts, `at_once` at a time (None: as many as are allowed).

        None stands for a prompt without an answer.
        """
        limit = asyncio.Semaphore(at_once or self.in_flight)

        async def read(prompt: str) -> ProbeReading | None:
            async with limit:
                found = await self.read(prompt)
            if self.heard is not None:
                self.heard(found)
            return found

        return list(await asyncio.gather(*(read(prompt) for prompt in prompts)))

    async def read(self, prompt: str) -> ProbeReading | None:
        """Return the answer to a prompt, in the state of the cache that all answers have."""
        try:
            if not self.salted:
                await self._try(prompt, TOKENS)
            found = _note(await self._try(prompt, TOKENS))
        except Unreadable as error:
            if error.text is not None:
                return ProbeReading(text=error.text)
            self.unanswered += 1
            self.why = str(error)
            return None
        if found.tokens and not found.skipped:
            first = found.tokens[0]
            self.chosen += 1
            self.unlikely += first.logprob < max([first.logprob, *first.top.values()])
        return found

    @property
    def samples(self) -> bool:
        """True if the server clearly ignores the temperature of 0."""
        return self.unlikely > max(LEAST_UNLIKELY, UNLIKELY * self.chosen)

    async def continue_texts(
        self, prompts: Sequence[str], tokens: int
    ) -> list[AnswerTokens | None]:
        """Return answers of up to `tokens` tokens to prompts, all in flight together."""

        async def ask(prompt: str) -> AnswerTokens | None:
            try:
                return await self._try(prompt, tokens)
            except Unreadable as error:
                self.why = str(error)
                return None

        return list(await asyncio.gather(*map(ask, prompts)))

    async def _try(self, prompt: str, tokens: int) -> AnswerTokens:
        for attempt in range(self.attempts):
            try:
                return await self._ask(prompt, tokens)
            except Unreadable as error:
                if error.refused or error.text is not None or attempt == self.attempts - 1:
                    raise
            await asyncio.sleep(PAUSE_S)
        raise AssertionError

    async def _ask(self, prompt: str, tokens: int) -> AnswerTokens:
        asked, extra = _write_probe(prompt, self.route)
        request = Request(
            sample_id="probe",
            prompt=asked,
            sampling=SamplingParams(max_tokens=tokens),
            extra={**extra, SALT: secrets.token_hex(16)} if self.salted else extra,
        )
        self.requests += 1
        found = await ask_tokens(request, self.client)
        self.tokens += found.usage.prompt_tokens + found.usage.completion_tokens
        self.fingerprint = found.fingerprint or self.fingerprint
        return found


def _write_probe(text: str, route: ProbeRoute) -> tuple[Prompt, dict[str, Any]]:
    """Return the prompt of a probe, and the fields that its route needs."""
    if route is ProbeRoute.TEXT:
        return text, {}
    if route is ProbeRoute.CHAT:
        return (Message(role="user", content=CONTINUE + text),), {}
    if route is ProbeRoute.PLAIN:
        return (Message(role="user", content=CONTINUE + text),), dict(NO_THOUGHTS)
    turns = Message(role="user", content=WRITE), Message(role="assistant", content=text)
    return turns, {"continue_final_message": True, "add_generation_prompt": False}


def _note(answer: AnswerTokens) -> ProbeReading:
    """Return what is kept of an answer.

    An orchestrator may leave the first token out of its list: the listed ones are then the last.
    """
    told = answer.usage.shown_tokens
    tokens = answer.tokens[:TOKENS]
    missing = min(TOKENS, told) - len(tokens) if 0 < len(tokens) < told else 0
    spelled = "".join(token.text for token in tokens)
    return ProbeReading(
        text=answer.text,
        tokens=tuple(
            TokenReading(
                text=token.text,
                logprob=round(token.logprob, 6),
                top={text: round(value, 6) for text, value in token.top.items()},
            )
            for token in tokens
        ),
        skipped=missing if answer.text.endswith(spelled) else 0,
        prompt_tokens=answer.usage.prompt_tokens,
        cached_tokens=answer.usage.cached_tokens,
    )
