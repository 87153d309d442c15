"""Answer requests by a context server and a generation server of vLLM, and name both.

Each request goes to a context server for its prompt, and then to a generation server, in turns.
The names of the servers are in the header fields CONTEXT and GENERATION of the answer, also of a
failed one. Nothing is retried and nothing is computed again: a server that fails, or does not hand
over, fails the request.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import aiohttp
import msgspec
from aiohttp import web

from serve_eval.launchers._http.requests import encode, trtllm_error
from serve_eval.launchers._http.server import json_response, serve_app
from serve_eval.launchers._process.server_process import serve_until_ended

CONTEXT, GENERATION = "X-Context-Server", "X-Generation-Server"
MAX_BODY_BYTES = 16 * 1024 * 1024
CONNECT_S, HEALTH_S = 10.0, 5.0
KEEPALIVE_S = 2.0
"""Idle seconds after which a connection to a server is not used again. vLLM closes it after 5."""
PASSED_ON = ("authorization", "x-request-id")
"""Header fields of a request that the servers get."""
GENERATED = ("/v1/completions", "/v1/chat/completions")
ASKED_OF_ONE = {"GET": ("/v1/models", "/version", "/tokenizer_info"), "POST": ("/tokenize",)}
"""Further routes, which the first context server answers."""


class VllmServer(NamedTuple):
    """A server by its name in the header fields, and its address without a path."""

    name: str
    url: str


class _Unanswered(Exception):
    """A server gave no usable answer: `status` and `message` are those for the client."""

    def __init__(self, status: int, message: str) -> None:
        self.status, self.message = status, message


def create_app(
    context: Sequence[VllmServer], generation: Sequence[VllmServer], *, by_params: bool
) -> web.Application:
    """Return the orchestrator as an aiohttp application.

    `by_params`: the servers hand over by `kv_transfer_params`, and a context server whose answer
    has none fails the request.
    """
    one = _Orchestrator(context, generation, by_params=by_params)
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    for path in GENERATED:
        app.router.add_post(path, one.generate)
    for method, paths in ASKED_OF_ONE.items():
        for path in paths:
            app.router.add_route(method, path, one.pass_on)
    app.router.add_get("/health", one.health)
    app.cleanup_ctx.append(one.open)
    return app


def pair_up(
    context: Sequence[VllmServer], generation: Sequence[VllmServer]
) -> list[tuple[VllmServer, VllmServer]]:
    """Return every pair once, in an order in which the servers of both roles take turns.

    If two servers of each role always worked as the same two pairs, no answer could tell a bad
    context server from a bad generation server.
    """
    m, n = len(context), len(generation)
    return [
        (context[i % m], generation[(i + shift) % n])
        for shift in range(math.gcd(m, n))
        for i in range(math.lcm(m, n))
    ]


class _Orchestrator:
    def __init__(
        self,
        context: Sequence[VllmServer],
        generation: Sequence[VllmServer],
        *,
        by_params: bool,
    ) -> None:
        self._servers = (*context, *generation)
        self._turns = itertools.cycle(pair_up(context, generation))
        self._by_params = by_params

    async def open(self, app: web.Application) -> AsyncIterator[None]:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        async with aiohttp.ClientSession(
            timeout=limits, connector=connector, auto_decompress=False
        ) as self._session:
            yield

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Answer a request by two servers, or by a generation server if it cannot be handed over.

        A body that is no JSON object goes to a generation server too, whose error is the answer.
        """
        raw, named = await request.read(), dict[str, str]()
        try:
            body = _read_object(raw)
            context, generation = next(self._turns)
            if body is not None and find_obstacle(body) is None:
                named[CONTEXT] = context.name
                first = build_first(body, with_params=self._by_params)
                refused, told = await self._ask_context(context, request, first)
                if refused is not None:
                    return json_response(*refused, headers=named)
                raw = encode(build_second(body, told))
            named[GENERATION] = generation.name
            return await self._relay(request, generation, raw, named)
        except _Unanswered as error:
            return _fail(error, named)

    async def _ask_context(
        self, server: VllmServer, request: web.Request, body: Mapping[str, Any]
    ) -> tuple[tuple[int, bytes] | None, Mapping[str, Any] | None]:
        """Return the context server's refusal, if any, and what it hands over."""
        try:
            async with self._session.post(
                server.url + request.path, data=encode(body), headers=_headers(request)
            ) as reply:
                status, content = reply.status, await reply.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Unanswered(502, f"{server.name}: {_describe(error)}") from error
        if status != 200:
            return (status, content), None
        told = read_params(_read_object(content))
        if self._by_params and told is None:
            raise _Unanswered(502, f"{server.name}: no kv_transfer_params in its answer")
        return None, told

    async def _relay(
        self, request: web.Request, server: VllmServer, body: bytes, named: Mapping[str, str]
    ) -> web.StreamResponse:
        """Pass the server's answer on as it comes.

        If it breaks off, the connection to the client is closed before the end of the answer.
        """
        response: web.StreamResponse | None = None
        try:
            async with self._session.request(
                request.method, server.url + request.path, data=body, headers=_headers(request)
            ) as reply:
                headers = {"Content-Type": reply.headers.get("Content-Type", ""), **named}
                response = web.StreamResponse(status=reply.status, headers=headers)
                await response.prepare(request)
                async for piece in reply.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response
        except ConnectionResetError:
            # Either the client or the server has gone; there is nobody to tell, or no way to.
            if response is None:
                raise _Unanswered(502, f"{server.name}: the connection was reset") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if response is None:
                raise _Unanswered(502, f"{server.name}: {_describe(error)}") from error
        if request.transport is not None:
            request.transport.abort()
        return response

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Let the first context server answer."""
        try:
            return await self._relay(request, self._servers[0], await request.read(), {})
        except _Unanswered as error:
            return _fail(error, {})

    async def health(self, request: web.Request) -> web.Response:
        """Return 200 if every server is healthy, else 503 with the names of the others."""
        found = await asyncio.gather(*(self._is_healthy(one) for one in self._servers))
        ill = [one.name for one, well in zip(self._servers, found, strict=True) if not well]
        if not ill:
            return web.Response()
        return _fail(_Unanswered(503, f"not healthy: {', '.join(ill)}"), {})

    async def _is_healthy(self, server: VllmServer) -> bool:
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with asyncio.timeout(HEALTH_S), self._session.get(server.url + "/health") as told:
                return told.status == 200
        return False


def _read_object(raw: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _headers(request: web.Request) -> dict[str, str]:
    found = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
    return {"Content-Type": "application/json", **found}


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _fail(error: _Unanswered, named: Mapping[str, str]) -> web.Response:
    body = trtllm_error(error.message, "ServerError", error.status)
    return json_response(error.status, encode(body), headers=named)


PARAMS = "kv_transfer_params"
FIRST: Mapping[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
"""Instructions to vLLM's prefill server about the KV cache of a prompt."""
LEFT_OUT = (
    "stream",
    "stream_options",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "logprobs",
    "top_logprobs",
)
"""Fields that the first request leaves out. It must end by length after one token: if it ends in
another way, vLLM keeps no blocks for the generation server."""


def find_obstacle(body: Mapping[str, Any]) -> str | None:
    """Return why vLLM cannot hand this request over; None if it can.

    The hand-over is for one prompt and one answer, and a generation server that fetches the KV
    cache computes no log-probabilities of the prompt.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not all(type(one) is int for one in prompt):
        return "several prompts"
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            return "several answers"
    if body.get("use_beam_search"):
        return "beam search"
    if body.get("echo") or body.get("prompt_logprobs") is not None:
        return "log-probabilities of the prompt"
    return None


def build_first(body: Mapping[str, Any], *, with_params: bool) -> dict[str, Any]:
    """Return the request to the context server: the same prompt, and an answer of one token.

    `with_params`: the connector hands over by fields of requests.
    """
    first = {name: value for name, value in body.items() if name not in LEFT_OUT}
    for name in ("max_tokens", "max_completion_tokens"):
        if name in first:
            first[name] = 1
    first |= {"max_tokens": 1, "ignore_eos": True}
    if first.get("tool_choice") not in (None, "none", "auto"):
        # An answer of one token cannot be a call. The tools stay in the prompt.
        first["tool_choice"] = "none"
    return {**first, PARAMS: dict(FIRST)} if with_params else first


def build_second(body: Mapping[str, Any], told: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the request to the generation server, with what the context server told."""
    return dict(body) if told is None else {**body, PARAMS: told}


def read_params(answer: object) -> Mapping[str, Any] | None:
    """Return what a context server's answer hands over, or None."""
    params = answer.get(PARAMS) if isinstance(answer, dict) else None
    return params if isinstance(params, dict) and params else None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m serve_eval.launchers._vllm.orchestrator",
        description="Run the orchestrator of a vLLM deployment as a separate process.",
        allow_abbrev=False,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    for side in ("context", "generation"):
        parser.add_argument(
            f"--{side}",
            type=_read_server,
            action="append",
            required=True,
            metavar="NAME=URL",
            help=f"a {side} server: its name in answers, and its address",
        )
    parser.add_argument(
        "--no-params",
        action="store_true",
        help="the servers hand over without kv_transfer_params, as by a folder",
    )
    given = parser.parse_args(arguments)
    app = create_app(given.context, given.generation, by_params=not given.no_params)
    serving = serve_app(app, host=given.host, port=given.port)
    asyncio.run(serve_until_ended(serving, "orchestrator", None))


def _read_server(text: str) -> VllmServer:
    name, _, url = text.partition("=")
    if not name or "://" not in url:
        raise argparse.ArgumentTypeError(f"{text}: not NAME=URL")
    return VllmServer(name, url.rstrip("/"))


if __name__ == "__main__":
    main()
