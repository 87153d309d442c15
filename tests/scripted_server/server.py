"""Serve scripted answers on a real loopback socket, by replies that a script offers.

A reply is a function from a request to the response that aiohttp sends. Replies can be combined:
`when(event, fail(503))` waits for the event and then refuses. A reply can be used any number of
times.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial

from aiohttp import web

from serve_eval.evaluation.capabilities.sampling.reading import PROMPT
from serve_eval.launchers._http.server import serve_app
from serve_eval.schema import Spec


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """A request that has arrived whole.

    `number` counts from 1 the requests that the script answers, and `in_flight` those that it is
    answering now, including this one; both are 0 for a request to a fixed route. `http` is
    aiohttp's request.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    number: int = 0
    in_flight: int = 0
    http: web.Request = field(repr=False)

    @cached_property
    def body(self):
        """Decode the JSON body; an empty one is {}."""
        return json.loads(self.raw or b"{}")

    @property
    def chat(self):
        """Return True for a chat request, False for a text completion."""
        return self.path.endswith("/chat/completions")

    @property
    def prompt(self):
        """Return the text of the prompt, or of the last message of a chat."""
        return (
            self.body["prompt"] if "prompt" in self.body else self.body["messages"][-1]["content"]
        )

    @property
    def max_tokens(self):
        """Return the limit of the answer's length, under either name, or 16 without one."""
        return int(self.body.get("max_completion_tokens", self.body.get("max_tokens", 16)))

    def reset(self):
        """Break the connection now, without the rest of the answer."""
        if self.http.transport is not None:
            self.http.transport.abort()


Reply = Callable[[HttpRequest], Awaitable[web.StreamResponse]]
JSON = "application/json"

# Answers


def answer(
    text,
    *,
    finish="stop",
    usage=None,
    choice=None,
    body=None,
    headers=None,
):
    """Answer with a text in the requested form: chat or completion, whole or as a stream.

    `usage` holds the tokens of the prompt and of the answer. `choice` and `body` are further fields
    of the choice and of the whole answer, such as its id. Two answers with the same id are a copy
    to our client.
    """
    counts = (
        {}
        if usage is None
        else {"usage": {"prompt_tokens": usage[0], "completion_tokens": usage[1]}}
    )

    async def reply(request):
        streamed = bool(request.body.get("stream"))
        only = {**_choice(request.chat, streamed, text), "finish_reason": finish, **(choice or {})}
        whole = {"choices": [only], **(body or {})}
        if not streamed:
            return await json_reply({**whole, **counts}, headers=headers)(request)
        counted = counts and (request.body.get("stream_options") or {}).get("include_usage")
        last = [{"choices": [], **counts}] if counted else []
        return await stream([whole, *last, "[DONE]"], headers=headers)(request)

    return reply


def _choice(chat, streamed, text):
    if not chat:
        return {"index": 0, "text": text}
    return {"index": 0, "delta" if streamed else "message": {"role": "assistant", "content": text}}


def tool_call(name, arguments):
    """Answer a chat with one tool call.

    Arguments that are a text are sent unchanged, valid JSON or not.
    """
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {
        "index": 0,
        "id": "1",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call]}

    async def reply(request):
        part = "delta" if request.body.get("stream") else "message"
        return await answer("", finish="tool_calls", choice={part: message})(request)

    return reply


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """One token of an answer with its log-probability, and the likeliest tokens at its position."""

    text: str
    logprob: float
    top: Mapping[str, float] = field(default_factory=dict)


def logprobs(tokens):
    """Answer with these tokens and their log-probabilities, in the form of the route."""
    text = "".join(token.text for token in tokens)
    of_chat = [
        {
            "token": token.text,
            "logprob": token.logprob,
            "top_logprobs": [
                {"token": name, "logprob": value} for name, value in token.top.items()
            ],
        }
        for token in tokens
    ]
    of_text = {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [dict(token.top) for token in tokens],
    }

    async def reply(request):
        told = {"content": of_chat} if request.chat else of_text
        return await answer(text, choice={"logprobs": told})(request)

    return reply


def stream(
    events,
    *,
    line_end=b"\n",
    headers=None,
):
    """Send server-sent events.

    Bytes are sent unchanged, a text as the data of an event, anything else as JSON. An asynchronous
    generator may wait between its events or break the connection; it serves one request.
    """

    def written(event):
        if isinstance(event, bytes):
            return event
        text = event if isinstance(event, str) else json.dumps(event)
        return f"data: {text}".encode() + 2 * line_end

    async def reply(request):
        told = {"Content-Type": "text/event-stream", **(headers or {})}
        response = web.StreamResponse(headers=told)
        await response.prepare(request.http)
        async with aclosing(
            events if isinstance(events, AsyncGenerator) else _each(events)
        ) as each:
            async for event in each:
                await response.write(written(event))
        await response.write_eof()
        return response

    return reply


async def _each(events):
    for event in events:
        yield event


# Other whole responses


def json_reply(body, status=200, headers=None):
    """Send a JSON body unchanged."""
    return raw(json.dumps(body).encode(), status, content_type=JSON, headers=headers)


def raw(
    body=b"",
    status=200,
    *,
    content_type=JSON,
    headers=None,
):
    """Send the bytes of a body, valid JSON or not."""

    async def reply(request):
        return web.Response(status=status, body=body, content_type=content_type, headers=headers)

    return reply


def fail(status, message="", headers=None):
    """Refuse with an error in trtllm-serve's form; without a message the body is empty."""
    if not message:
        return raw(status=status, headers=headers)
    return json_reply({"object": "error", "message": message, "code": status}, status, headers)


def models(*names):
    """List these models, as /v1/models does."""
    return json_reply(
        {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
    )


def version(text):
    """Return the version of the server, as trtllm-serve's /version does."""
    return json_reply({"version": text})


def hand_over(handler):
    """Answer with a handler of aiohttp, such as one of the simulated endpoint."""

    async def reply(request):
        return await handler(request.http)

    return reply


# Silence and its length


def stall():
    """Send nothing until the client hangs up or the server ends."""

    async def wait(request):
        await asyncio.Event().wait()
        raise AssertionError

    return wait


def when(event, reply):
    """Wait for an event of the test before the reply."""

    async def wait(request):
        await event.wait()
        return await reply(request)

    return wait


def after(delay_s, reply):
    """Wait a time before the reply.

    Use it only to test the time itself; `when` is faster and reliable.
    """

    async def wait(request):
        await asyncio.sleep(delay_s)
        return await reply(request)

    return wait


def hang_up():
    """Close the connection in order instead of answering."""

    async def reply(request):
        if request.http.transport is not None:
            request.http.transport.close()
        return web.Response()

    return reply


def reset():
    """Break the connection instead of answering."""

    async def reply(request):
        request.reset()
        return web.Response()

    return reply


Responder = Callable[[HttpRequest], Reply | Awaitable[Reply | web.StreamResponse]]
"""A reply, or a function that picks the reply to a request; an async one may return a response."""
Script = Sequence[Reply] | Responder
"""Replies in the order of requests, the last one repeating, or one responder for all."""
COMPLETIONS = ("/v1/completions", "/v1/chat/completions")
EVERY_PATH = ("/{path:.*}",)
IGNORES = "The cat sleeps."
"""Answer to each question of the probe for sampling defaults, so that no field is heeded."""
MAX_BODY_BYTES = 64 * 1024 * 1024


class ScriptedServer:
    """An OpenAI-compatible server whose answers a test writes.

    The script answers `paths`: POST requests for completions, or with `EVERY_PATH` any request.
    `routes` are the replies of other paths, such as {"/v1/models": models("m")}; all other paths
    are 404. The server keeps what it received: `requests` are all requests, `asked` those that the
    script answered. `max_in_flight` is the largest number of requests that the script answered at
    the same time.

    Questions of the probe for sampling defaults get one text, whatever they send, and are among
    `requests` alone, unless the script is to be `probed`.
    """

    def __init__(
        self,
        script=(),
        *,
        paths=COMPLETIONS,
        routes=None,
        probed=False,
    ):
        self.requests = []
        self.asked = []
        self.in_flight = self.max_in_flight = 0
        self._script, self._paths, self._routes = script, paths, dict(routes or {})
        self._probed = probed

    @property
    def bodies(self):
        """Return the JSON bodies that the script answered, in order of arrival."""
        return [request.body for request in self.asked]

    def serve(self, *, port=0):
        """Serve in the running event loop and yield the base URL `http://127.0.0.1:PORT/v1`.

        Port 0 is a free one.
        """
        return serve_app(self.app(), port=port)

    def serve_in_thread(self):
        """Serve from a thread and yield the base URL.

        Use it for callers that run their own event loop or process.
        """
        return serve_in_thread(self.app())

    def app(self):
        """Build a new application with the same record, for callers that serve it on their own."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        for path, responder in self._routes.items():
            app.router.add_route("*", path, partial(self._routed, responder))
        for path in self._paths if self._script != () else ():
            app.router.add_route("*" if self._paths == EVERY_PATH else "POST", path, self._scripted)
        return app

    async def _routed(self, responder, http):
        request = _request(http, await http.read())
        self.requests.append(request)
        return await _respond(responder, request)

    async def _scripted(self, http):
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            raw = await http.read()  # before the number, since others may arrive meanwhile
            if not self._probed and PROMPT.encode() in raw:
                self.requests.append(request := _request(http, raw))
                return await _respond(lambda asked: answer(IGNORES), request)
            request = _request(http, raw, number=len(self.asked) + 1, in_flight=self.in_flight)
            self.requests.append(request)
            self.asked.append(request)
            script = self._script
            responder = script if callable(script) else script[min(request.number, len(script)) - 1]
            return await _respond(responder, request)
        finally:
            self.in_flight -= 1


async def _respond(responder, request):
    picked = responder(request)
    made = await picked if isinstance(picked, Awaitable) else picked
    return made if isinstance(made, web.StreamResponse) else await made(request)


def _request(http, raw, *, number=0, in_flight=0):
    return HttpRequest(
        method=http.method,
        path=http.path,
        headers=http.headers,
        raw=raw,
        number=number,
        in_flight=in_flight,
        http=http,
    )


def external(url):
    """Return the launcher of a plan that asks the server at this address."""
    return Spec(name="external", options={"base_url": url})


def serve(server):
    """Serve a scripted server or an application and yield its base URL.

    The application may be a simulated endpoint.
    """
    return server.serve() if isinstance(server, ScriptedServer) else serve_app(server)


@contextmanager
def serve_in_thread(app):
    """Serve an application from a thread until the end of the block, and yield its base URL."""
    loop, url, ended = asyncio.new_event_loop(), Future[str](), asyncio.Event()

    async def main():
        async with serve_app(app) as at:
            url.set_result(at)
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        yield url.result(30)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        loop.close()
