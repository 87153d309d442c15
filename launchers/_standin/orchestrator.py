"""The orchestrator: sends every request to a context worker, then to a generation worker.

It has no model.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from serve_eval.launchers._http.requests import RefusedRequest, encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin.cluster import Workers
from serve_eval.launchers._standin.config import Orchestrator
from serve_eval.launchers._standin.faults import Faults
from serve_eval.launchers._standin.fields import (
    CompletionRequest,
    Request,
)
from serve_eval.launchers._standin.legs import Legs, WorkerRefused
from serve_eval.launchers._standin.metrics import (
    TRACE_VARIABLE,
    MetricsFile,
    Told,
    Traces,
    event,
    wants_metrics,
)
from serve_eval.launchers._standin.options import Flavour, version_of
from serve_eval.launchers._standin.parsing import Invalid, is_object, parse, set_fields
from serve_eval.launchers._standin.perf import Counted
from serve_eval.launchers._standin.replies import Answer, write
from serve_eval.launchers._standin.serving import application, log

ONE_PROMPT = (
    "Disaggregated server currently only supports single string prompt or list of integers in"
    " request"
)


PROCESS_IDS = 1024
"""Ids of requests that each process of a fleet has before they come again."""


class Orchestrating:
    """The server of `trtllm-serve disaggregated`; `process` is its number in a fleet."""

    def __init__(
        self,
        config: Orchestrator,
        faults: Faults,
        flavour: Flavour,
        request_timeout_s: float,
        *,
        process: int = 0,
    ) -> None:
        self.config, self.faults, self.flavour = config, faults, flavour
        self._timeout = aiohttp.ClientTimeout(total=request_timeout_s)
        self._workers = Workers(config, flavour)
        self._ctx, self._gen = self._workers.context, self._workers.generation
        self._numbers = itertools.count(process * PROCESS_IDS)
        main = flavour == "main"
        self._exposes = main and config.return_perf_metrics
        self._metrics = MetricsFile(config.perf_metrics_output_dir if main else None, "disagg")
        asks = self._exposes or self._metrics.folder is not None
        self._legs = Legs(config, flavour, asks_metrics=asks)
        self._traces = Traces(os.environ.get(TRACE_VARIABLE) if main else None)
        self.app = application()
        self.app.router.add_post("/v1/completions", self._receive)
        self.app.router.add_post("/v1/chat/completions", self._receive)
        if flavour == "main":
            self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_get("/health", self._health)
        self.app.router.add_get("/version", self._version)
        self.app.router.add_get("/cluster_info", self._cluster_info)
        self._counted = Counted(config, self._workers, self._legs)
        self._counted.add_routes(self.app, perf_metrics=not main)
        self._workers.add_routes(self.app)

    # Workers

    async def workers_healthy(self, timeout_s: float) -> bool:
        """Return True once all workers of the file are healthy, False after `timeout_s`."""
        async with self._session() as session:
            return await self._workers.are_healthy(session, timeout_s)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Keep a session for requests, and follow registrations, for the length of the block."""
        async with self._session() as session, self._metrics.writing(), self._traces.writing():
            self._legs.client = session
            async with self._workers.watch(session):
                yield

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=self._timeout, trust_env=False)

    # Small routes

    async def _health(self, request: web.Request) -> web.Response:
        not_ready = 503 if self.flavour == "main" else 500
        return web.Response(status=200 if self._workers.are_ready() else not_ready)

    async def _models(self, request: web.Request) -> web.Response:
        """Return the models of a context worker."""
        if not self._workers.are_ready() or not self._ctx.servers:
            return json_response(503, encode({"detail": "No context server is available"}))
        try:
            async with self._legs.client.get(
                f"http://{self._ctx.servers[0]}/v1/models"
            ) as response:
                return json_response(response.status, await response.read())
        except (aiohttp.ClientError, OSError) as error:
            return json_response(
                503, encode({"detail": f"No context server answers: {type(error).__name__}"})
            )

    async def _version(self, request: web.Request) -> web.Response:
        return json_response(200, encode({"version": version_of(self.flavour)}))

    async def _cluster_info(self, request: web.Request) -> web.Response:
        info: dict[str, Any] = {"is_ready": self._workers.are_ready()}
        if self.config.cluster:
            info |= {"current_workers": self._workers.list_registered()}
            info |= {"minimal_instances": dict(self.config.cluster.minimal_instances)}
        return json_response(200, encode(info))

    # Inference

    async def _receive(self, http: web.Request) -> web.StreamResponse:
        told, either = Told(time.monotonic()), self.flavour != "main"
        raw = await http.read()
        if self.flavour == "main" and not is_object(http, raw):
            return web.Response(status=500, text="Internal Server Error")
        note_response = self._traces.note_request(http, told.arrived, raw)
        status = "error"
        try:
            chat = http.path == "/v1/chat/completions"
            request = parse(raw, chat=chat, flavour=self.flavour, path=http.path, either=either)
            self._counted.requests += 1
            await self._misbehave()
            response = await self._serve(http, request, told)
            status = "completed"
        except Invalid as error:
            response, status = json_response(400, encode({"error": str(error)})), "rejected_400"
        except RefusedRequest as error:
            response = json_response(error.status, encode(error.body))
        except WorkerRefused as error:
            response = json_response(error.status, encode({"detail": error.told}))
        except Exception as error:
            response = json_response(500, encode({"detail": f"Internal server error {error}"}))
        except asyncio.CancelledError:
            status = "client_disconnected"
            if self.flavour == "main":
                log(
                    f'"POST {http.path} HTTP/1.1" 499: the client has gone, and its request is'
                    " given up"
                )
            raise
        finally:
            note_response(status, None, told.number)
        if told.finished is not None:
            self._metrics.note(told.line())
            if self._exposes and wants_metrics(http.headers) and not response.prepared:
                response.headers.update(told.fields())
        return response

    async def _misbehave(self) -> None:
        faults = self.faults
        if faults.crash_after is not None and self._counted.requests > faults.crash_after:
            sys.stderr.write(f"crashing after {faults.crash_after} requests, as told\n")
            sys.stderr.flush()
            os._exit(1)
        if faults.hang_after is not None and self._counted.requests > faults.hang_after:
            await asyncio.Event().wait()
        await asyncio.sleep(faults.pause_s(self._counted.requests))

    async def _serve(self, http: web.Request, request: Request, told: Told) -> web.StreamResponse:
        if not self._workers.are_ready():
            raise RuntimeError("Cluster is not ready")
        fields = set_fields(request)
        if isinstance(request, CompletionRequest):
            fields["prompt"] = _one_prompt(request.prompt)
        number = told.number = self._request_id()
        context = self._ctx.next(request)
        if self.config.schedule_style == "generation_first":
            return await self._both_at_once(http, request, fields, number, context, told)
        answer = await self._context(request, fields, number, context, told)
        if _is_final(answer, request, self.flavour):
            told.finish()
            if request.stream:
                return await _send_done(http, self._event(http, told))
            final = answer.model_dump_json(
                exclude={"choices": {"__all__": {"disaggregated_params"}}}
            )
            return json_response(200, final.encode())
        params = answer.choices[0].disaggregated_params
        assert params is not None
        given = {**params.model_dump(), "request_type": "generation_only"}
        ids = "prompt" if isinstance(request, CompletionRequest) else "prompt_token_ids"
        body = {**fields, ids: answer.prompt_token_ids, "disaggregated_params": given}
        generation = self._gen.next(request, context)
        response = await self._generation(http, request, body, generation, told)
        self._counted.routed.note(context, generation, number, told.arrived)
        return response

    async def _both_at_once(
        self,
        http: web.Request,
        request: Request,
        fields: dict[str, Any],
        number: int,
        context: str,
        told: Told,
    ) -> web.StreamResponse:
        params = {
            "request_type": "generation_only",
            "ctx_request_id": number,
            "disagg_request_id": number,
        }
        body = {**fields, "disaggregated_params": {**params, "schedule_style": 1}}
        first = asyncio.create_task(self._context(request, fields, number, context, told))
        try:
            generation = self._gen.next(request, context)
            response = await self._generation(http, request, body, generation, told)
            await first
            self._counted.routed.note(context, generation, number, told.arrived)
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        return response

    async def _context(
        self, request: Request, fields: dict[str, Any], number: int, url: str, told: Told
    ) -> Answer:
        params = {"request_type": "context_only", "disagg_request_id": number}
        body = {**fields, "stream": False, "stream_options": None, "disaggregated_params": params}
        told.dispatched = time.monotonic()
        answer = await self._legs.whole("ctx", self._ctx, url, request, body, told)
        if len(answer.choices) != 1 and self.flavour != "main":
            raise ValueError(f"Context server returned {len(answer.choices)} choices, expecting 1.")
        given = answer.choices[0].disaggregated_params
        if given is None:
            raise ValueError("Context server did not return disaggregated params")
        if given.ctx_request_id is None or given.disagg_request_id is None:
            raise ValueError("Invalid disaggregated params in context phase response.")
        return answer

    async def _generation(
        self, http: web.Request, request: Request, body: dict[str, Any], url: str, told: Told
    ) -> web.StreamResponse:
        if not request.stream:
            answer = await self._legs.whole("gen", self._gen, url, request, body, told)
            told.finish()
            return json_response(200, write(answer, self.flavour))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        try:
            async for part in self._legs.relay(self._gen, url, request, body, told):
                await response.write(part)
            told.finish()
        except Exception as error:
            log(f"stream dropped: {error}")
            if http.transport is not None:
                http.transport.abort()
            return response
        await response.write_eof(self._event(http, told))
        return response

    def _event(self, http: web.Request, told: Told) -> bytes:
        return event(told.fields()) if self._exposes and wants_metrics(http.headers) else b""

    def _request_id(self) -> int:
        """Return a request id above 2 ** 40, made of time, node and a counter."""
        ticks = int(time.monotonic() * 1000) & (2**39 - 1)
        return (1 << 40) + (
            ticks << 22 | self.config.node_id << 14 | next(self._numbers) % (1 << 14)
        ) % (2**63 - 2**40)


def _one_prompt(prompt: Any) -> Any:
    if isinstance(prompt, list) and (not prompt or not isinstance(prompt[0], int)):
        if not prompt:
            raise ValueError("Disaggregated server does not support empty prompt list")
        if len(prompt) != 1:
            raise ValueError(ONE_PROMPT)
        return prompt[0]
    return prompt


def _is_final(answer: Answer, request: Request, flavour: Flavour) -> bool:
    """Return True if the context worker's first token was the whole answer.

    For an answer of one token, main asks a generation worker nevertheless.
    """
    most = (
        request.max_tokens
        if isinstance(request, CompletionRequest)
        else request.max_completion_tokens
    )
    return (most == 1 and flavour != "main") or answer.choices[0].finish_reason not in (
        "length",
        "not_finished",
    )


async def _send_done(http: web.Request, last: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(http)
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof(last)
    return response
