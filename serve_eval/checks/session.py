"""Send the requests of the checks, and keep what later checks need."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from serve_eval.checks.answer import (
    MOST_ROOM,
    NO_THOUGHTS,
    Answer,
    AnswerChoice,
    NotAnswered,
    Stream,
    Thinking,
    count,
    read_stream,
)
from serve_eval.checks.row import CheckResult, SentRequest
from serve_eval.client.attempts.liveness import SETTLE_S, listens
from serve_eval.client.client import Client
from serve_eval.client.preflight import key_advice
from serve_eval.client.wire_format.reply import TooLarge
from serve_eval.client.wire_format.wire import CHAT_COMPLETIONS, COMPLETIONS
from serve_eval.errors import EndpointError
from serve_eval.frozen import freeze_places
from serve_eval.schema import Failure, Route

if TYPE_CHECKING:
    from openai import AsyncOpenAI


@freeze_places
class Check:
    """A check that an endpoint has one capability.

    `run` sends at most `requests` requests that generate at most `tokens` tokens in total; their
    prompts have about `prompt_tokens` tokens. `full`: only at --level full. `model`: it tests the
    model, not only its server.

    `run` may raise NotAnswered, whose answer then becomes the row.
    """

    name: str
    run: Callable[[CheckSession], Awaitable[CheckResult]]
    _: KW_ONLY
    requests: int
    tokens: int = 0
    prompt_tokens: int = 0
    full: bool = False
    model: bool = False


TIMEOUT_S = 60.0
"""Default time limit of a request, in seconds."""
ALIVE_TOKENS = 2
"""Tokens of the request that tests whether the endpoint is alive. A disaggregated deployment
answers one token without its generation server."""
TEMPLATE_TOKENS = 64
"""At most the tokens that most chat templates add."""


class OverBudget(Exception):
    """A check sent more than it declared: a defect of the check."""


@dataclass(slots=True)
class Known:
    """Findings of the checks so far.

    `varied`: temperature changed an answer. `takes_seed`: the seed field is not refused. `goes_on`:
    the counting answer was cut at its token limit, as expected; its prompt had `count_tokens`.
    `streams` holds the streams that were complete, by kind of request (chat: True), and `whole` the
    complete answers to the same prompt. So do
    `prompt_tokens` and `prompt_ids` the tokens of the first prompt, as counted by its answer, and
    as the server tokenizes it. `server` is the kind of server, if the owner of its models reveals
    it. `greedy_varies`: answers at temperature 0 differed. `sampled` holds answers of different
    seeds to one prompt. `media` holds the prompt tokens of the question alone by the check whose
    medium was taken (0: not counted). `rehearsal`: the stand-in answers. `thinking` is what the
    model is known to do before it answers.
    """

    listed: list[str] = field(default_factory=list)
    models: Answer | None = None
    orchestrator: bool = False
    context_tokens: int | None = None
    server: str | None = None
    greedy_varies: bool = False
    varied: bool = False
    sampled: list[str] = field(default_factory=list)
    takes_seed: bool = True
    goes_on: bool = False
    count_tokens: int | None = None
    streams: dict[bool, Stream] = field(default_factory=dict)
    whole: dict[bool, AnswerChoice] = field(default_factory=dict)
    prompt_tokens: dict[bool, int] = field(default_factory=dict)
    prompt_ids: dict[bool, list[int]] = field(default_factory=dict)
    media: dict[str, int] = field(default_factory=dict)
    tokens_per_line: float | None = None
    rehearsal: bool = False
    thinking: Thinking = NO_THOUGHTS


class CheckSession:
    """A session that sends each request once through `client`, on a separate connection.

    `base_path` is the path up to /v1 and `model` the name that is sent; the first check sets both.
    `chat` and `text` say which kinds of requests are answered. `openai` makes the client of the
    official package for a base URL. `allow` limits what may be sent from then on. `listens` waits
    for `settle_s` first, since a server may close connections before it stops listening.
    """

    def __init__(
        self,
        client: Client,
        *,
        model: str | None,
        openai: Callable[[str], AsyncOpenAI],
        timeout_s: float = TIMEOUT_S,
        context_tokens: int | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        self.client, self.model, self.timeout_s, self._openai = client, model, timeout_s, openai
        self._settle_s = settle_s
        parts = urlsplit(client.endpoint.base_url)
        self._origin = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
        self.base_path = parts.path
        self.chat = self.text = False
        self.known = Known(context_tokens=context_tokens)
        self.requests = self.generated = 0
        self._requests_left = self._tokens_left = 0

    @property
    def base_url(self) -> str:
        return self._origin + self.base_path

    @property
    def root(self) -> str:
        """The path before /v1."""
        return self.base_path.removesuffix("/v1")

    def allow(self, requests: int, tokens: int) -> None:
        """Permit `requests` more requests, with at most `tokens` generated tokens in total.

        The room for thoughts comes on top.
        """
        room = requests * self.known.thinking.room
        self._requests_left, self._tokens_left = requests, tokens + room

    def allow_more(self, tokens: int, *, requests: int = 0) -> None:
        """Permit further tokens and requests for thoughts, which no cost of a check states."""
        self._tokens_left += tokens
        self._requests_left += requests

    async def get(self, path: str) -> Answer:
        """Send a GET for a path below the host."""
        return await self._exchange("GET", path, None, self.timeout_s, None, tokens=0)

    async def post_elsewhere(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Send a request that generates nothing to a path below the host."""
        return await self._exchange("POST", path, body, self.timeout_s, None, tokens=0)

    async def post(
        self,
        body: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        most_bytes: int | None = None,
    ) -> Answer:
        """Send a request for an answer, by the route that its fields belong to.

        The connection is closed beyond `most_bytes`.
        """
        route = CHAT_COMPLETIONS if "messages" in body else COMPLETIONS
        route = Route.RESPONSES if "input" in body else route
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        answer = await self._exchange(
            "POST", self.base_path + route, body, limit_s, most_bytes, tokens=_most_tokens(body)
        )
        usage = read_stream(answer).usage if answer.streams else answer.parsed.get("usage")
        self.generated += count(usage, "completion_tokens") or count(usage, "output_tokens") or 0
        return answer

    def body(
        self, prompt: str, *, chat: bool | None = None, max_tokens: int, **more: Any
    ) -> dict[str, Any]:
        """Return the body of a request for `prompt`.

        It is greedy unless `more` says otherwise, and a chat request if the endpoint answers chat.
        """
        by_chat = self.chat if chat is None else chat
        asked: dict[str, Any] = {"model": self.model or ""}
        if by_chat:
            asked |= {
                "messages": [{"role": "user", "content": prompt}],
                self.client.max_tokens_field: max_tokens,
            }
        else:
            asked |= {"prompt": prompt, "max_tokens": max_tokens}
        return {**asked, "temperature": 0, **more}

    def roomy_body(
        self,
        prompt: str,
        *,
        chat: bool | None = None,
        max_tokens: int,
        most_room: int = MOST_ROOM,
        **more: Any,
    ) -> dict[str, Any]:
        """Return the body of a request whose answer is judged, not only its form.

        If the model thinks first, its thoughts are switched off, or the answer has room for them,
        of at most `most_room` tokens.
        """
        thinking, by_chat = self.known.thinking, self.chat if chat is None else chat
        if not by_chat or not thinking.thinks:
            return self.body(prompt, chat=chat, max_tokens=max_tokens, **more)
        most = self.fit(
            max_tokens + min(most_room, thinking.room), len(prompt) // 2 + TEMPLATE_TOKENS
        )
        return self.body(prompt, chat=chat, max_tokens=most, **thinking.off, **more)

    async def ask_roomy(
        self, prompt: str, *, chat: bool | None = None, max_tokens: int, **more: Any
    ) -> Answer:
        """Return the answer to the request of `roomy_body`. Raises NotAnswered."""
        return require_answer(
            await self.post(self.roomy_body(prompt, chat=chat, max_tokens=max_tokens, **more))
        )

    async def ask(
        self, prompt: str, *, chat: bool | None = None, max_tokens: int, **more: Any
    ) -> Answer:
        """Return the answer to a prompt. Raises NotAnswered."""
        return require_answer(
            await self.post(self.body(prompt, chat=chat, max_tokens=max_tokens, **more))
        )

    @property
    def judges_chats(self) -> bool:
        """True if checks judge answers to chats: false if thoughts leave no room for an answer."""
        thinking = self.known.thinking
        return self.chat and not (thinking.endless and not thinking.off and self.text)

    def tell_cut(self) -> str:
        """Return what is said of an answer that ended within its thoughts."""
        room = self.known.thinking.room
        within = f" although it had room for {room} tokens of them" if room else ""
        return f"cut within its thoughts{within}: thoughts only, so the answer is not judged"

    def fit(self, tokens: int, prompt_tokens: int) -> int:
        """Return `tokens`, or the room that a prompt leaves in the context, if that is less."""
        context = self.known.context_tokens
        return tokens if context is None else max(1, min(tokens, context - prompt_tokens))

    async def alive(self) -> bool:
        """Return whether a short request is answered now. It counts towards no check's limits."""
        self.allow(1, ALIVE_TOKENS)
        return (await self.post(self.body("Hello", max_tokens=ALIVE_TOKENS))).answered

    async def listens(self) -> bool:
        """Return False if the endpoint refuses every connection, as after the end of its server.

        Behind a proxy this is not known, and True.
        """
        transport = self.client.transport
        if transport.proxy is not None:
            return True
        await asyncio.sleep(self._settle_s)
        return await listens(transport.address.host, transport.address.port)

    def sdk(self, body: Mapping[str, Any]) -> AsyncOpenAI:
        """Return the client of the official package, to send this body once."""
        self._spend(body, _most_tokens(body))
        return self._openai(self.base_url)

    def _spend(self, body: Mapping[str, Any] | None, tokens: int) -> None:
        """Count a request that is about to be sent. Raises OverBudget."""
        self._requests_left -= 1
        self._tokens_left -= tokens
        if min(self._requests_left, self._tokens_left) < 0:
            raise OverBudget(f"{'GET' if body is None else body}")
        self.requests += 1

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        most_bytes: int | None,
        *,
        tokens: int,
    ) -> Answer:
        self._spend(body, tokens)
        sent = SentRequest(url=self._origin + path, body=body)
        raw = None if body is None else msgspec.json.encode(body)
        began = time.monotonic()
        reply = await self.client.exchange(
            method, path, raw, timeout_s=timeout_s, most_bytes=most_bytes
        )
        seconds = time.monotonic() - began
        if isinstance(reply, Failure):
            return Answer(sent=sent, seconds=seconds, problem=reply.message)
        masking = self.client.masking
        return Answer(
            sent=sent,
            seconds=seconds,
            status=reply.status,
            content_type=reply.content_type,
            content=reply.content,
            problem="" if reply.error is None else masking.message(str(reply.error)),
            cut_by_us=isinstance(reply.error, TooLarge),
            mask=masking.text,
            starting=reply.starting,
        )


def require_answer(answer: Answer) -> Answer:
    """Return the response if it is an answer. Raises NotAnswered."""
    if not answer.answered:
        raise NotAnswered(answer)
    return answer


class StillStarting(EndpointError):
    """The endpoint reports that it is loading its model: nothing can be checked, nothing failed."""


def explain_unauthorized(session: CheckSession, answer: Answer) -> EndpointError | None:
    """Return an error that says what to do about a missing or wrong key, or None."""
    if answer.status not in (401, 403):
        return None
    return EndpointError(f"{answer.sent.url}: {answer.told}", hint=key_advice(session.client))


def _most_tokens(body: Mapping[str, Any]) -> int:
    """Return the most tokens that a request can generate."""
    prompt = body.get("prompt")
    several = (
        len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str) else 1
    )
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    each = next((body[name] for name in names if name in body), None)
    assert isinstance(each, int)
    return each * several * int(body.get("n", 1))
