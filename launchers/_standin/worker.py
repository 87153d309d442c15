"""A worker: one model behind HTTP, for whole answers or one leg of disaggregated serving."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
from aiohttp import web

from serve_eval.launchers._http import responses
from serve_eval.launchers._http.requests import RefusedRequest, bad_request, encode, trtllm_error
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin import config as standin_config
from serve_eval.launchers._standin import metrics, model
from serve_eval.launchers._standin.faults import Faults, is_at
from serve_eval.launchers._standin.fields import (
    CompletionRequest,
    MainDisaggregatedParams,
    Request,
)
from serve_eval.launchers._standin.generation import (
    Output,
    fits,
    generate,
    opaque_state,
    shape_thoughts,
    state_of,
)
from serve_eval.launchers._standin.model import SeenPrompts, shape, think
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.parsing import Invalid, Reading, is_object, parse
from serve_eval.launchers._standin.perf import Performed
from serve_eval.launchers._standin.replies import Answer, Replies, write
from serve_eval.launchers._standin.serving import application, log
from serve_eval.launchers._standin.worker_config import PlainRoutes, WorkerConfig, route_metrics

EVENTS = {"Content-Type": "text/event-stream; charset=utf-8"}
FATAL = (
    "[11/28/2026-10:00:00] [TRT-LLM] [E] CppExecutorError: CUDA error: an illegal memory access was"
    " encountered"
)
ASKED = web.RequestKey("asked", responses.ResponsesAsk)
"""Key of a request to /v1/responses with what it asked."""
UNAVAILABLE = "LLM is unavailable. Please check the server logs for more details."


def create(
    config: WorkerConfig, brain: model.MadeUpModel, faults: Faults, flavour: Flavour
) -> web.Application:
    """Return the application of a worker whose answers are those of `brain`."""
    worker, plain = _Worker(config, brain, faults, flavour), PlainRoutes(config, flavour)
    app = application()
    routes: list[tuple[str, str, Any]] = [
        ("GET", "/health", worker.health),
        ("GET", "/health_generate", worker.health_generate),
        ("GET", "/version", plain.version),
        ("GET", "/v1/models", plain.models),
        ("GET", "/metrics", plain.nothing),
        ("POST", "/kv_cache_events", plain.nothing),
        ("GET", "/steady_clock_offset", worker.clock),
        ("POST", "/steady_clock_offset", worker.set_clock),
        ("GET", "/server_info", plain.info),
        ("POST", "/v1/completions", worker.completions),
        ("POST", "/v1/chat/completions", worker.chat),
        ("POST", responses.PATH, worker.responses),
    ]
    if config.args.get("return_perf_metrics"):
        routes += [("GET", path, handler) for path, handler in route_metrics(worker.prometheus)]
    if flavour == "main":
        routes.append(("POST", "/_internal/tokenize", plain.tokenize))
        routes.append(("GET", "/openapi.json", plain.openapi))
    else:
        routes.append(("GET", "/perf_metrics", worker.perf_metrics))
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)
    return app


class _Worker:
    def __init__(
        self, config: WorkerConfig, brain: model.MadeUpModel, faults: Faults, flavour: Flavour
    ) -> None:
        self.config, self.brain, self.faults, self.flavour = config, brain, faults, flavour
        args = config.args
        self.tensor_parallel = args.get("tensor_parallel_size") or 1
        transceiver = config.transceiver and not faults.no_transceiver
        self._reading = Reading(config, flavour, transceiver=transceiver)
        self._replies = Replies(config, faults.tools, flavour, opens=self._opens)
        self.dead = False
        self._requests = 0
        self._counted = [0] * config.front_ends
        self._contexts = itertools.count(1)
        self._performed = Performed(config)
        self._prefixes = SeenPrompts() if faults.prefix_cache else None
        self._conversations = responses.Conversations()
        self._items = responses.ResponsesWriter("trtllm", self._conversations)

    # Small routes

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=503, text=UNAVAILABLE) if self.dead else web.Response()

    async def health_generate(self, request: web.Request) -> web.Response:
        if self.dead or self._beyond(self.faults.error_after):
            return web.Response(status=500, text="Generation health check failed")
        if self._beyond(self.faults.hang_after):
            await asyncio.Event().wait()
        return web.Response(text="Generation health check OK")

    async def perf_metrics(self, request: web.Request) -> web.Response:
        return json_response(200, encode(self._performed.drain()))

    async def clock(self, request: web.Request) -> web.Response:
        received = time.monotonic()
        await asyncio.sleep(0.2)
        return json_response(200, encode({"receive_ts": received, "transmit_ts": time.monotonic()}))

    async def set_clock(self, request: web.Request) -> web.Response:
        self._performed.offset_s = (await request.json())["offset"]
        return web.Response()

    async def prometheus(self, request: web.Request) -> web.Response:
        """Answer as one of the front ends, to which the kernel deals connections at random."""
        return web.Response(text=f"trtllm_request_success_total {random.choice(self._counted)}\n")

    # Inference

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=True)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """Answer as a chat; the request keeps what was asked, for the form of its answer."""
        try:
            request[ASKED] = responses.to_chat(await request.read(), self._conversations)
        except RefusedRequest as error:
            return json_response(error.status, encode(error.body))
        return await self._receive(request, chat=True)

    def _beyond(self, count: int | None) -> bool:
        return count is not None and self._requests > count

    async def _receive(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        arrived = time.monotonic()
        if http.transport is not None:
            self._replies.connections.add(http.transport)
        try:
            asked = http.get(ASKED)
            raw = await http.read() if asked is None else asked.raw
            if self.flavour == "main" and not is_object(http, raw):
                return web.Response(status=500, text="Internal Server Error")
            packed = http.headers.get("X-TRTLLM-Msgpack") == "1"
            body = msgspec.msgpack.decode(raw) if packed else raw
            path = http.path if asked is None else "/v1/chat/completions"
            request = parse(body, chat=chat, flavour=self.flavour, path=path)
            self._authenticate(http, request)
            self._requests += 1
            self._counted[random.randrange(len(self._counted))] += 1
            number = self._requests
            if self._beyond(self.faults.executor_crash_after):
                return self._die()
            if self._requests == self.faults.lose and http.transport is not None:
                http.transport.abort()
            if self._fails_in_engine(number) and request.stream and not _is_context(request):
                return await self._end_stream(http, request)
            await self._misbehave(number)
            return await self._answer(http, request, number, arrived)
        except Invalid as error:
            return json_response(400, encode({"error": str(error)}))
        except RefusedRequest as error:
            return json_response(error.status, encode(error.body))
        except ConnectionError:
            raise  # the client is gone
        except Exception as error:
            return json_response(400, encode(bad_request(str(error)).body))

    def _die(self) -> web.Response:
        """Answer as a server whose engine has failed for good."""
        if self.dead:
            raise bad_request("Generation failed: the executor is gone")
        self.dead = True
        sys.stderr.write(f"{FATAL}\n")
        sys.stderr.flush()
        loop = asyncio.get_running_loop()
        loop.call_later(self.faults.lingers_s, os.kill, os.getpid(), signal.SIGINT)
        return json_response(200, b"null")

    def _authenticate(self, http: web.Request, request: Request) -> None:
        params = request.disaggregated_params
        if self.faults.tells_key:
            log(f"the key is {self.config.auth_key}")
        if self.flavour == "main" and params is not None:
            standin_config.check(self.config.auth_key, params.model_dump(), http.headers)

    def _breaks(self, number: int) -> bool:
        return self.faults.fail_stream is not None and self.faults.is_drawn(number)

    def _fails_in_engine(self, number: int) -> bool:
        """Return True if main's engine refuses the request, which a stream tells by an event."""
        faults = self.faults
        engine = self.flavour == "main" and faults.error_status == 400
        return engine and faults.strikes(faults.error_after, number)

    async def _end_stream(
        self, http: web.Request, request: Request, response: web.StreamResponse | None = None
    ) -> web.StreamResponse:
        """End a stream as main does after a fault of its engine.

        Completions get an event with the error, and two ends; chats lose their connection.
        """
        if response is None:
            response = web.StreamResponse(headers=EVENTS)
            await response.prepare(http)
        if isinstance(request, CompletionRequest):
            error = {"message": self.faults.error_says, "type": "server_error"}
            told = encode({"error": {**error, "code": None, "param": None}})
            await response.write(b"data: " + told + b"\n\n" + b"data: [DONE]\n\n" * 2)
            await response.write_eof()
        elif http.transport is not None:
            http.transport.abort()
        return response

    async def _misbehave(self, number: int) -> None:
        faults = self.faults
        if self._beyond(faults.crash_after):
            sys.stderr.write(f"crashing after {faults.crash_after} requests, as told\n")
            sys.stderr.flush()
            os._exit(1)
        if self._requests <= faults.refuse_first:
            raise RefusedRequest(500, {"detail": "Internal server error No 0 servers available"})
        if self._beyond(faults.hang_after):
            await asyncio.Event().wait()
        if self._beyond(faults.unhealthy_after):
            self.dead = True
            raise bad_request("Generation failed: the executor is gone")
        if faults.strikes(faults.error_after, number):
            kind = "BadRequestError" if faults.error_status < 500 else "InternalServerError"
            raise RefusedRequest(
                faults.error_status, trtllm_error(faults.error_says, kind, faults.error_status)
            )
        await asyncio.sleep(faults.pause_s(number))

    async def _answer(
        self, http: web.Request, request: Request, number: int, arrived: float
    ) -> web.StreamResponse:
        began = time.monotonic()
        self._reading.check(request)
        prompts = self._reading.list_prompts(request)
        room = [self._reading.room(ids, request) for ids in prompts]
        params = request.disaggregated_params
        context = _is_context(request)
        outputs, cached = [], self._count_cached(prompts, request)
        for ids, most in zip(prompts, room, strict=True):
            for index in range(request.n):
                answer = self._whole(ids, request, index, number, cached)
                outputs.append(generate(answer, request, 1 if context else most))
        prompt_tokens = sum(len(ids) for ids in prompts)
        timing = self._performed.note(
            request, arrived=arrived, began=began, prompt_tokens=prompt_tokens
        )
        kept = self.flavour == "main" and bool(self.config.args.get("return_perf_metrics"))
        told = (
            metrics.fields("server", timing) if kept and metrics.wants_metrics(http.headers) else {}
        )
        if self.flavour == "main" and not request.stream and self._breaks(number) and not context:
            raise bad_request(self.faults.error_says)
        if context:
            body = self._replies.body(request, outputs, prompt_tokens, cached)
            place = _place(http) | ({"cached": cached} if cached else {})
            self._hand_over(request, body, outputs, prompts[0], place)
            return json_response(200, write(body, self.flavour), told)
        if request.stream:
            return await self._stream(
                http, request, outputs, prompt_tokens, number, metrics.event(told), cached
            )
        body = self._replies.body(request, outputs, prompt_tokens, cached)
        if params is not None and self.flavour == "main":
            for choice in body.choices:
                choice.disaggregated_params = MainDisaggregatedParams(
                    request_type=params.request_type,
                    ctx_request_id=params.ctx_request_id,
                    disagg_request_id=params.disagg_request_id,
                    return_prompt_token_ids_b64=False,
                )
        written, asked = write(body, self.flavour), http.get(ASKED)
        return json_response(
            200, written if asked is None else self._items.whole(asked, written), told
        )

    def _count_cached(self, prompts: list[list[int]], request: Request) -> int:
        """Return the tokens of prompts that the prefix cache of their context worker has."""
        params = request.disaggregated_params
        if params is not None and params.request_type == "generation_only":
            return int(state_of(params.encoded_opaque_state).get("cached", 0))
        if self._prefixes is None:
            return 0
        salt = getattr(request, "cache_salt", None) or ""
        return sum(self._prefixes.take(ids, salt) for ids in prompts)

    def _whole(
        self, ids: list[int], request: Request, index: int, number: int, cached: int
    ) -> list[int]:
        """Return the whole answer, with the first token that a context worker may have chosen."""
        params = request.disaggregated_params
        wrong = self.faults.corrupts(number, len(ids))
        wrong |= self.faults.spoils_turn(ids, cached)
        first: list[int] = []
        if params is not None and params.request_type == "generation_only":
            state = state_of(params.encoded_opaque_state)
            wrong |= not fits(state, ids)
            wrong |= (
                self.faults.wrong_tp
                and state.get("tp", self.tensor_parallel) != self.tensor_parallel
            )
            wrong |= bool(self.faults.wrong_pair) and is_at(self.faults.wrong_pair, state)
            if self.faults.strikes(self.faults.kv_loss_after, number):
                return [model.EOS]
            first = params.first_gen_tokens or []
        shaped = shape(request, self.brain.defaults)
        answer = self.brain.answer(
            ids, index=index, wrong=wrong, sampled=shaped.seed, marks=shaped.marks
        )
        answer = [*self._think(request, f"{ids}:{shaped.seed}"), *answer]
        return [*first, *answer[len(first) :]] if len(first) < len(answer) else [*first, model.EOS]

    def _think(self, request: Request, drawn: str = "") -> list[int]:
        """Return the thoughts before an answer; none if the request or the server wants none."""
        return shape_thoughts(think(request, self.faults.thinks), self.faults.thoughts, drawn)

    def _opens(self, request: Request) -> bool:
        """Return True if the chat template opened the thoughts, which answers then continue."""
        return self.faults.thoughts.opened and bool(self._think(request))

    def _hand_over(
        self,
        request: Request,
        body: Answer,
        outputs: list[Output],
        ids: list[int],
        place: dict[str, Any],
    ) -> None:
        """Add the data for the generation worker. `place` is the location of this worker."""
        params = request.disaggregated_params
        assert params is not None
        body.prompt_token_ids = ids
        for choice, output in zip(body.choices, outputs, strict=True):
            given = type(params)(
                request_type="context_only",
                first_gen_tokens=output.ids[:1],
                ctx_request_id=next(self._contexts),
                encoded_opaque_state=opaque_state(ids, self.tensor_parallel, place),
                disagg_request_id=params.disagg_request_id,
                ctx_dp_rank=0,
            )
            if self.faults.null_ctx_id and output.finish_reason == "stop":
                given.ctx_request_id = None
            choice.disaggregated_params = given  # type: ignore[attr-defined] # one of both kinds of choice

    async def _stream(
        self,
        http: web.Request,
        request: Request,
        outputs: list[Output],
        prompt_tokens: int,
        received: int,
        last: bytes,
        cached: int,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENTS)
        await response.prepare(http)
        events, asked = (
            _each(self._replies.events(request, outputs, prompt_tokens, cached)),
            http.get(ASKED),
        )
        number = -1
        async for event in events if asked is None else self._items.events(asked, events):
            number += 1
            if number == self.faults.fail_stream and self.faults.is_drawn(received):
                if self.flavour == "main":
                    return await self._end_stream(http, request, response)
                if http.transport is not None:
                    http.transport.abort()
                return response
            if number == self.faults.drop_stream and self.faults.is_drawn(received):
                if http.transport is not None:
                    http.transport.abort()
                return response
            await response.write(event)
        await response.write_eof(last)
        return response


async def _each(events: Iterable[bytes]) -> AsyncIterator[bytes]:
    for event in events:
        yield event


def _is_context(request: Request) -> bool:
    params = request.disaggregated_params
    return params is not None and params.request_type == "context_only"


def _place(http: web.Request) -> dict[str, Any]:
    """Return the place of this worker, as faults select it."""
    port = http.transport.get_extra_info("sockname")[1] if http.transport is not None else None
    return {"port": port, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
