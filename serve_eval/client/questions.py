"""Ask an endpoint about itself, and read what it reports."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from serve_eval.client import engine_metrics
from serve_eval.client.attempts.attempt import NOT_SENT
from serve_eval.client.attempts.liveness import Start
from serve_eval.client.attempts.outcome import Missed, OutcomeReader
from serve_eval.client.engine_metrics import EngineReading
from serve_eval.client.tls import other_scheme
from serve_eval.client.transport import RequestHead, Transport
from serve_eval.client.wire_format.refusal import UNREADABLE
from serve_eval.client.wire_format.reply import Reply
from serve_eval.protocol import chat_template
from serve_eval.schema import Endpoint, Failure, FailureKind, is_stand_in

ENGINE_S = 10.0
"""Time limit of a request for the counters of an engine, in seconds."""


class EndpointQuestions:
    """Sends requests to the routes next to `path`, the path of the base URL."""

    def __init__(
        self, exchange: RawExchange, path: str, start: Start, reader: OutcomeReader
    ) -> None:
        self._exchange, self._models, self._root = (
            exchange,
            path + "/models",
            path.removesuffix("/v1"),
        )
        self._start, self._reader = start, reader

    async def still_starting(self, timeout_s: float) -> bool:
        """Return True if the endpoint reports that it is starting. Any route would do.

        Without an answer the wait ends: the next request reports the reason.
        """
        try:
            return (await self._exchange.send("GET", self._models, timeout_s=timeout_s)).starting
        except Missed:
            return False

    async def models(self) -> list[str] | Failure:
        """Return the ids that /v1/models lists, or a Failure for a status other than 200.

        A 200 that lists none gives an empty list. A server without the route (a disaggregated
        orchestrator) fails with 404.
        """
        try:
            reply = await self._exchange.send("GET", self._models)
            if reply.starting and await self._start.over():
                reply = await self._exchange.send("GET", self._models)
        except Missed as missed:
            return missed.to_failure()
        if reply.error is not None:
            cut = self._reader.of_error(reply.error)
            return Failure(kind=cut.kind, message=str(cut), status=reply.status)
        if reply.status != 200:
            told = (
                self._start.in_vain if reply.starting else self._reader.describe_body(reply.content)
            )
            if reply.status < 400:
                told = "a redirect, which is not followed"
            return Failure(
                kind=FailureKind.HTTP_ERROR,
                message=f"HTTP {reply.status}: {told}",
                status=reply.status,
            )
        if is_page(reply.content):
            return Failure(
                kind=FailureKind.INVALID_RESPONSE,
                message="an HTML page, not a list of models",
            )
        return model_ids(reply.content)

    async def context_tokens(self, model: str | None) -> int | None:
        """Return the tokens that prompt and answer may have together, if reported."""
        try:
            return context_tokens(await self._exchange.get(self._models), model)
        except Missed:
            return None

    async def describe(self) -> dict[str, object]:
        """Return the `models`, `server` and `version` that the endpoint reports."""
        told: dict[str, object] = {}
        server = None
        with suppress(Missed):
            listed = await self._exchange.get(self._models)
            told["models"] = model_ids(listed)
            if (server := find_server(listed)) is not None:
                told["server"] = server
        for route in version_routes(server):
            with suppress(Missed):
                version = find_version(await self._exchange.get(self._root + route))
                if version is not None:
                    told["version"] = version
                    break
        return told

    async def special_tokens(self) -> dict[str, str]:
        """Return the special tokens that the endpoint reports, by names such as eos_token.

        vLLM reports them at /tokenizer_info if an option enables it, and llama.cpp at /props.
        """
        for route in ("/tokenizer_info", "/props"):
            with suppress(Missed):
                if found := special_tokens(await self._exchange.get(self._root + route)):
                    return found
        return {}

    async def read_engine(self, route: str, model: str | None) -> EngineReading | None:
        """Return the counters of the engine at one of the routes of `engine_metrics`."""
        with suppress(Missed):
            reply = await self._exchange.send(
                "GET",
                self._root + route,
                timeout_s=ENGINE_S,
                most_bytes=engine_metrics.MOST_BYTES,
            )
            if reply.error is None and reply.status == 200:
                return engine_metrics.read_metrics(reply.content, model)
        return None

    async def count_hidden_retries(self) -> dict[str, int]:
        """Return the retries of a trtllm-serve orchestrator since its start, by kind of server."""
        with suppress(Missed):
            return count_hidden_retries(
                await self._exchange.get(self._root + "/prometheus/metrics/")
            )
        return {}


GET_S = 30.0
"""Time limit of a request, in seconds, unless the caller sets one."""


class RawExchange:
    """Sends requests with the session's headers, without retries or records.

    `posted` counts the POSTs, which may have been answered by generation.
    """

    def __init__(
        self,
        transport: Transport,
        headers: Mapping[str, str],
        reader: OutcomeReader,
        *,
        mask: Callable[[bytes], bytes] | None,
        max_bytes: int,
    ) -> None:
        self._transport, self._headers, self._reader = transport, headers, reader
        self._mask, self._max_bytes = mask, max_bytes
        self.posted = 0

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = GET_S,
        most_bytes: int | None = None,
    ) -> Reply:
        """Return the reply, which may have an `error`. Raises Missed if no answer began."""
        self.posted += method == "POST"
        limit = self._max_bytes if most_bytes is None else most_bytes
        future = asyncio.get_running_loop().create_future()
        reply = Reply(future, limit=limit, now=time.monotonic(), raw=True, mask=self._mask)
        try:
            async with asyncio.timeout(timeout_s):
                await self._exchange(RequestHead(method, path, self._headers), body, reply)
        except TimeoutError as error:
            if not reply.status:
                raise Missed(FailureKind.TIMEOUT, f"no answer within {timeout_s:g} s") from error
            reply.error = TimeoutError(f"no complete answer within {timeout_s:g} s")
        if reply.error is not None and not reply.status:
            raise self._reader.of_error(reply.error)
        return reply

    async def _exchange(self, head: RequestHead, body: bytes | None, reply: Reply) -> None:
        try:
            channel = await self._transport.send(head, body, reply, fresh=True)
        except TimeoutError as error:
            raise self._reader.not_connected() from error
        except NOT_SENT as error:
            raise self._reader.of_error(error) from error
        try:
            await reply.ended
        finally:
            self._transport.abort(channel)

    async def get(self, path: str) -> bytes:
        """Return the body of a GET; empty unless the status is 200. Raises Missed."""
        reply = await self.send("GET", path)
        if reply.error is not None:
            raise self._reader.of_error(reply.error)
        return reply.content if reply.status == 200 else b""


class EndpointReports:
    """The part of a Client that sends single requests, outside samples and retries."""

    endpoint: Endpoint
    transport: Transport
    _raw: RawExchange
    _questions: EndpointQuestions

    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = GET_S,
        most_bytes: int | None = None,
    ) -> Reply | Failure:
        """Send one request as is, once, on a connection of its own; do not parse event streams.

        `path` is the path of the whole URL. An incomplete reply has an `error`: TooLarge beyond
        `most_bytes`, where the connection is closed, or TimeoutError after `timeout_s`. Returns a
        Failure if there is no reply.
        """
        try:
            return await self._raw.send(
                method, path, body, timeout_s=timeout_s, most_bytes=most_bytes
            )
        except Missed as missed:
            return missed.to_failure()

    async def models(self) -> list[str] | Failure:
        """Return the ids that /v1/models lists, or a Failure for a status other than 200.

        A 200 that lists none gives an empty list. A server without the route (a disaggregated
        orchestrator) fails with 404.
        """
        return await self._questions.models()

    async def other_scheme(self) -> str:
        """Return a hint if the server speaks https instead of http, or the reverse; else ""."""
        return (
            "" if self.transport.proxy is not None else await other_scheme(self.endpoint.base_url)
        )

    async def context_tokens(self) -> int | None:
        """Return the tokens that prompt and answer may have together, if reported."""
        return await self._questions.context_tokens(self.endpoint.model)

    async def describe(self) -> dict[str, object]:
        """Return the `models`, `server` and `version` that the endpoint reports."""
        return await self._questions.describe()

    async def is_stand_in(self) -> bool:
        """Return True if the version that the endpoint reports is that of a rehearsal's stand-in.

        Commands that make no run folder, whose report says so, recognise a rehearsal by this.
        """
        return is_stand_in((await self.describe()).get("version"))

    async def special_tokens(self) -> dict[str, str]:
        """Return the special tokens that the endpoint reports, by name."""
        return await self._questions.special_tokens()

    async def count_hidden_retries(self) -> dict[str, int]:
        """Return an orchestrator's own retries by kind of server; empty if they are not counted."""
        return await self._questions.count_hidden_retries()

    async def read_engine(self, route: str) -> EngineReading | None:
        """Return the counters of the endpoint's engine, or None if it has none at `route`.

        `route` is one of those in `engine_metrics`, which says of which servers it may be asked.
        """
        return await self._questions.read_engine(route, self.endpoint.model)


VERSION_ROUTES = ("/version",)
SGLANG_ROUTES = ("/server_info", "/get_server_info")
"""The routes at which SGLang tells its version among its options; older ones have the second."""


def version_routes(server: str | None) -> tuple[str, ...]:
    """Return the routes below the root at which a kind of server may tell its version."""
    return SGLANG_ROUTES if server == SGLANG else VERSION_ROUTES


def find_version(body: bytes) -> str | None:
    """Return the version in an answer of one of the version_routes, or None."""
    try:
        told = msgspec.json.decode(body)["version"]
    except (*UNREADABLE, KeyError, TypeError):
        return None
    return told if isinstance(told, str) else None


def special_tokens(body: bytes) -> dict[str, str]:
    """Return the special tokens in the settings of a tokenizer or a server."""
    try:
        content = msgspec.json.decode(body)
    except UNREADABLE:
        return {}
    return chat_template.read_texts(content) if isinstance(content, dict) else {}


_RETRIES = re.compile(
    r"^(\w{1,20})_retry_requests_total(?:\{[^}]{0,200}\})? (\d{1,15}(?:\.\d{1,15})?)\s*$",
    re.MULTILINE,
)
_KINDS = {"ctx": "context", "gen": "generation"}


def count_hidden_retries(body: bytes) -> dict[str, int]:
    """Return an orchestrator's own retries by the kind of server, from its Prometheus metrics.

    Empty if the metrics of trtllm-serve do not contain them.
    """
    text = body.decode(errors="replace")
    return {_KINDS.get(kind, kind): int(float(count)) for kind, count in _RETRIES.findall(text)}


LLAMA_CPP_PYTHON, VLLM, TRTLLM_SERVE = "llama-cpp-python", "vLLM", "trtllm-serve"
SGLANG = "SGLang"
_OWNERS = {
    "me": LLAMA_CPP_PYTHON,
    "llamacpp": "llama-server",
    "vllm": VLLM,
    "sglang": SGLANG,
    "tensorrt_llm": TRTLLM_SERVE,
}
"""The owners that these servers report for their models."""


def find_server(body: bytes) -> str | None:
    """Return the kind of server behind a /v1/models answer, if the models' owner reveals it."""
    try:
        return _OWNERS.get(msgspec.json.decode(body)["data"][0]["owned_by"])
    except (*UNREADABLE, KeyError, TypeError, IndexError):
        return None


def is_page(body: bytes) -> bool:
    """Return True if an answer is an HTML page, which no endpoint sends."""
    return body.lstrip()[:14].lower().startswith((b"<html", b"<!doctype html"))


def model_ids(body: bytes) -> list[str]:
    """Return the ids in a /v1/models answer; empty if it is not one."""
    try:
        data = msgspec.json.decode(body)
        return [entry["id"] for entry in data["data"] if isinstance(entry["id"], str)]
    except (*UNREADABLE, KeyError, TypeError):
        return []


def context_tokens(body: bytes, model: str | None) -> int | None:
    """Return the `max_model_len` of `model`, or of the only model, in a /v1/models answer."""
    try:
        data = msgspec.json.decode(body)["data"]
        entry = next(
            (entry for entry in data if entry["id"] == model), data[0] if len(data) == 1 else {}
        )
        told = entry.get("max_model_len")
    except (*UNREADABLE, KeyError, TypeError, IndexError, AttributeError):
        return None
    return told if type(told) is int and told > 0 else None
