"""The orchestrator: sends every request to a context worker, then to a generation worker.

It has no model.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from serve_eval.launchers._http.errors import encode
from serve_eval.launchers._http.server import json_response
from tests.standin import auth
from tests.standin.bodies import Answer, ChatAnswer, TextAnswer
from tests.standin.config import Orchestrator
from tests.standin.discovery import Store, prefix
from tests.standin.etcd import SCHEME, Etcd
from tests.standin.faults import Faults
from tests.standin.fields import CompletionRequest, Invalid, Request, parse, set_fields
from tests.standin.metrics import (
    RETURN,
    TRACE_VARIABLE,
    Metrics,
    Stripped,
    Told,
    Traces,
    event,
    wanted,
)
from tests.standin.options import Flavour
from tests.standin.perf import Routed
from tests.standin.relay import WorkerRefused
from tests.standin.routers import Router
from tests.standin.serving import application, log
from tests.standin.worker import VERSIONS

POLL_S = float(os.environ.get("STANDIN_POLL_S", "3"))
"""Seconds between checks of the workers' health while starting."""
WATCH_S = 0.5
"""Seconds between checks of the registered workers."""
RETRY_S = 1.0
LOST_RETRIES = 5
"""Retries of main after a lost connection, independent of max_retries.

TRTLLM_DISAGG_NO_RETRY=1 disables them.
"""
ONE_PROMPT = (
    "Disaggregated server currently only supports single string prompt or list of integers in"
    " request"
)


class Orchestrating:
    """The server of `trtllm-serve disaggregated`."""

    def __init__(
        self, config: Orchestrator, faults: Faults, flavour: Flavour, request_timeout_s: float
    ) -> None:
        self.config, self.faults, self.flavour = config, faults, flavour
        self._timeout = aiohttp.ClientTimeout(total=request_timeout_s)
        self._ctx = Router(config.ctx_router, config.urls("ctx"), flavour)
        self._gen = Router(config.gen_router, config.urls("gen"), flavour)
        self._store = Store()
        self._known: dict[str, tuple[Router, str]] = {}
        self._numbers = itertools.count()
        self._requests = 0
        self._routed = Routed(config.perf_metrics_max_requests)
        main = flavour == "main"
        self._exposes = main and config.return_perf_metrics
        self._metrics = Metrics(config.perf_metrics_output_dir if main else None, "disagg")
        self._traces = Traces(os.environ.get(TRACE_VARIABLE) if main else None)
        self.app = application()
        self.app.router.add_post("/v1/completions", self._receive)
        self.app.router.add_post("/v1/chat/completions", self._receive)
        if flavour == "main":
            self.app.router.add_get("/v1/models", self._models)
        self.app.router.add_get("/health", self._health)
        self.app.router.add_get("/version", self._version)
        self.app.router.add_get("/cluster_info", self._cluster_info)
        if not main:
            self.app.router.add_get("/perf_metrics", self._perf_metrics)
        self.app.router.add_get("/prometheus/metrics", self._to_prometheus)
        self.app.router.add_get("/prometheus/metrics/", self._prometheus)
        self._etcd: Etcd | None = None
        self._listed: dict[str, str] = {}
        if config.cluster and config.cluster.cluster_uri.startswith(SCHEME):
            self._etcd = Etcd(config.cluster.cluster_uri)
        elif config.cluster:
            self._store.add_routes(self.app)

    # Workers

    async def workers_healthy(self, timeout_s: float) -> bool:
        """Greet the workers of the file, then wait until all are healthy.

        Return False after `timeout_s`.
        """
        urls = [*self.config.urls("ctx"), *self.config.urls("gen")]
        deadline = time.monotonic() + timeout_s
        async with self._session() as session:
            for url in urls:
                await self._greet(session, url)
            while True:
                if all([await _is_healthy(session, url) for url in urls]):
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                await asyncio.sleep(min(POLL_S, left))

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Follow registrations for the length of the block, in cluster mode."""
        async with self._session() as self._client, self._metrics.writing(), self._traces.writing():
            tasks = []
            if self.config.cluster:
                tasks = [
                    asyncio.create_task(self._store.forget()),
                    asyncio.create_task(self._watch()),
                ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(timeout=self._timeout, trust_env=False)

    async def _greet(self, session: aiohttp.ClientSession, url: str) -> None:
        """Send the first request to a worker, for its clock; failures are only logged."""
        try:
            closing, sent = {"Connection": "close"}, time.monotonic()
            async with session.get(
                f"http://{url}/steady_clock_offset", headers=closing
            ) as response:
                remote = (await response.json())["receive_ts"]
            body = {"offset": sent - remote}
            async with session.post(
                f"http://{url}/steady_clock_offset", json=body, headers=closing
            ):
                pass
        except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            log(f"cannot get the clock of {url}: {error}")
        try:
            async with session.get(f"http://{url}/server_info") as response:
                await response.read()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            log(f"cannot get server_info of {url}: {error}")

    async def _watch(self) -> None:
        assert self.config.cluster is not None
        while True:
            await asyncio.sleep(WATCH_S)
            found = self._listed = await self._below(prefix(self.config.cluster))
            for key in [key for key in self._known if key not in found]:
                router, url = self._known.pop(key)
                router.servers.remove(url)
            for key, value in found.items():
                if key not in self._known:
                    worker = json.loads(value)
                    url = f"{worker['host']}:{worker['port']}"
                    await self._greet(self._client, url)
                    router = self._gen if worker["role"] == 1 else self._ctx
                    self._known[key] = router, url
                    router.servers.append(url)

    async def _below(self, start: str) -> dict[str, str]:
        if self._etcd is None:
            return self._store.below(start)
        try:
            return await self._etcd.below(start)
        except (aiohttp.ClientError, OSError) as error:
            log(f"Etcd3 error: {error}")
            return self._listed

    def _registered(self) -> dict[str, list[dict[str, Any]]]:
        assert self.config.cluster is not None
        found = self._listed if self._etcd else self._store.below(prefix(self.config.cluster))
        workers = [json.loads(value) for value in found.values()]
        return {
            "context_servers": [one for one in workers if one["role"] == 0],
            "generation_servers": [one for one in workers if one["role"] == 1],
        }

    def _ready(self) -> bool:
        if not self.config.cluster:
            return True
        least, there = self.config.cluster.minimal_instances, self._registered()
        return all(len(there[name]) >= least.get(name, 1) for name in there)

    # Small routes

    async def _health(self, request: web.Request) -> web.Response:
        not_ready = 503 if self.flavour == "main" else 500
        return web.Response(status=200 if self._ready() else not_ready)

    async def _models(self, request: web.Request) -> web.Response:
        """Return the models of a context worker."""
        if not self._ready() or not self._ctx.servers:
            return json_response(503, encode({"detail": "No context server is available"}))
        try:
            async with self._client.get(f"http://{self._ctx.servers[0]}/v1/models") as response:
                return json_response(response.status, await response.read())
        except (aiohttp.ClientError, OSError) as error:
            return json_response(
                503, encode({"detail": f"No context server answers: {type(error).__name__}"})
            )

    async def _version(self, request: web.Request) -> web.Response:
        return json_response(200, encode({"version": VERSIONS[self.flavour]}))

    async def _cluster_info(self, request: web.Request) -> web.Response:
        info: dict[str, Any] = {"is_ready": self._ready()}
        if self.config.cluster:
            info |= {"current_workers": self._registered()}
            info |= {"minimal_instances": dict(self.config.cluster.minimal_instances)}
        return json_response(200, encode(info))

    async def _perf_metrics(self, request: web.Request) -> web.Response:
        told: dict[str, list[dict[str, Any]]] = {}
        for url in (*self._ctx.servers, *self._gen.servers):
            try:
                async with self._client.get(f"http://{url}/perf_metrics") as response:
                    told[url] = await response.json()
            except (aiohttp.ClientError, OSError, ValueError) as error:
                log(f"no metrics of {url}: {error}")
        return json_response(200, encode(self._routed.drain(told)))

    async def _to_prometheus(self, request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/prometheus/metrics/"})

    async def _prometheus(self, request: web.Request) -> web.Response:
        counts = {"total_requests": self._requests}
        counts |= {"ctx_retry_requests": self._ctx.retries, "gen_retry_requests": self._gen.retries}
        lines = [
            f"# TYPE {name}_total counter\n{name}_total {count}.0\n"
            for name, count in counts.items()
        ]
        return web.Response(text="".join(lines))

    # Inference

    async def _receive(self, http: web.Request) -> web.StreamResponse:
        told, either = Told(time.monotonic()), self.flavour != "main"
        raw = await http.read()
        note_response = self._traces.note_request(http, told.arrived, raw)
        status = "error"
        try:
            chat = http.path == "/v1/chat/completions"
            request = parse(raw, chat=chat, flavour=self.flavour, path=http.path, either=either)
            self._requests += 1
            await self._misbehave()
            response = await self._serve(http, request, told)
            status = "completed"
        except Invalid as error:
            response, status = json_response(400, encode({"error": str(error)})), "rejected_400"
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
            if self._exposes and wanted(http.headers) and not response.prepared:
                response.headers.update(told.fields())
        return response

    async def _misbehave(self) -> None:
        faults = self.faults
        if faults.crash_after is not None and self._requests > faults.crash_after:
            sys.stderr.write(f"crashing after {faults.crash_after} requests, as told\n")
            sys.stderr.flush()
            os._exit(1)
        if faults.hang_after is not None and self._requests > faults.hang_after:
            await asyncio.Event().wait()
        await asyncio.sleep(faults.pause_s(self._requests))

    async def _serve(self, http: web.Request, request: Request, told: Told) -> web.StreamResponse:
        if not self._ready():
            raise RuntimeError("Cluster is not ready")
        fields = set_fields(request)
        if isinstance(request, CompletionRequest):
            fields["prompt"] = _one_prompt(request.prompt)
        number = told.number = self._request_id()
        context = self._ctx.next(request)
        if self.config.schedule_style == "generation_first":
            return await self._both_at_once(http, request, fields, number, context, told)
        answer = await self._context(request, fields, number, context, told)
        if _is_final(answer, request):
            told.done()
            if request.stream:
                return await _done_only(http, self._event(http, told))
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
        self._routed.note(context, generation, number, told.arrived)
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
            self._routed.note(context, generation, number, told.arrived)
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
        answer = await self._whole(self._ctx, url, request, body, told)
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
            answer = await self._whole(self._gen, url, request, body, told)
            told.done()
            return json_response(200, answer.model_dump_json().encode())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        try:
            async for part in self._relayed(url, request, body, told):
                await response.write(part)
            told.done()
        except Exception as error:
            log(f"stream dropped: {error}")
            if http.transport is not None:
                http.transport.abort()
            return response
        await response.write_eof(self._event(http, told))
        return response

    def _event(self, http: web.Request, told: Told) -> bytes:
        return event(told.fields()) if self._exposes and wanted(http.headers) else b""

    # To and from a worker

    async def _whole(
        self, router: Router, url: str, request: Request, body: dict[str, Any], told: Told
    ) -> Answer:
        """Return a worker's whole answer.

        Connection errors, and statuses that mean one, are retried.
        """
        for attempt in itertools.count():
            router.busy[url] = router.busy.get(url, 0) + 1
            try:
                async with self._post(url, request, body) as response:
                    if "text/event-stream" in response.headers.get("Content-Type", ""):
                        raise ValueError(
                            "Received an event-stream although request stream was False"
                        )
                    await self._raise_for_status(response)
                    raw = await response.read()
                    told.hear("ctx" if router is self._ctx else "gen", url, response.headers)
                break
            except (aiohttp.ClientError, OSError) as error:
                if attempt >= self._retries(error):
                    raise
                router.retries += 1
                await asyncio.sleep(RETRY_S)
            finally:
                router.busy[url] -= 1
        kind: type[Answer] = TextAnswer if isinstance(request, CompletionRequest) else ChatAnswer
        return kind.model_validate_json(raw)

    async def _relayed(
        self, url: str, request: Request, body: dict[str, Any], told: Told
    ) -> AsyncIterator[bytes]:
        """Relay a worker's stream.

        Broken connections are retried until the first byte. An answer of another type is not
        retried.
        """
        started = False
        for attempt in itertools.count():
            try:
                async with self._post(url, request, body) as response:
                    if "text/event-stream" not in response.headers.get("Content-Type", ""):
                        raise ValueError(
                            "Received no event-stream although request stream was True"
                        )
                    await self._raise_for_status(response)
                    stripped = Stripped()
                    async for part in response.content.iter_any():
                        started, told.first_token = True, told.first_token or time.monotonic()
                        if kept := stripped.feed(part):
                            yield kept
                    told.hear("gen", url, stripped.told())
                return
            except (aiohttp.ClientError, OSError) as error:
                if started or attempt >= self._retries(error):
                    raise
                self._gen.retries += 1
                await asyncio.sleep(RETRY_S)

    def _retries(self, error: Exception) -> int:
        """Return the number of retries after this error."""
        if self.flavour != "main":
            return self.config.max_retries
        if isinstance(error, aiohttp.ClientResponseError) and error.status < 500:
            return 0
        if os.environ.get("TRTLLM_DISAGG_NO_RETRY") == "1":
            return 0
        lost = isinstance(error, (aiohttp.ServerDisconnectedError, ConnectionResetError))
        return max(self.config.max_retries, LOST_RETRIES if lost else 0)

    def _post(self, url: str, request: Request, body: dict[str, Any]) -> Any:
        path = (
            "/v1/completions" if isinstance(request, CompletionRequest) else "/v1/chat/completions"
        )
        headers = {"Content-Type": "application/json"}
        if self.flavour != "main":
            return self._client.post(f"http://{url}{path}", data=encode(body), headers=headers)
        headers["X-TRTLLM-Msgpack"] = "1"
        if self._exposes or self._metrics.folder is not None:
            headers[RETURN] = "1"
        headers |= auth.headers(self.config.auth_key, body.get("disaggregated_params") or {})
        return self._client.post(
            f"http://{url}{path}", data=msgspec.msgpack.encode(body), headers=headers
        )

    async def _raise_for_status(self, response: aiohttp.ClientResponse) -> None:
        if self.flavour == "main" and response.status >= 400:
            text = (await response.text())[:2048]
            if response.status < 500:
                raise WorkerRefused(response.status, text)
            raise aiohttp.ClientResponseError(
                response.request_info,
                response.history,
                status=response.status,
                message=f"{response.reason}: {text}",
                headers=response.headers,
            )
        response.raise_for_status()

    def _request_id(self) -> int:
        """Return a request id above 2 ** 40, made of time, node and a counter."""
        ticks = int(time.monotonic() * 1000) & (2**39 - 1)
        return (1 << 40) + (
            ticks << 22 | self.config.node_id << 14 | next(self._numbers) % (1 << 14)
        ) % (2**63 - 2**40)


async def _is_healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"http://{url}/health") as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError, ValueError):
        return False


def _one_prompt(prompt: Any) -> Any:
    if isinstance(prompt, list) and (not prompt or not isinstance(prompt[0], int)):
        if len(prompt) != 1:
            raise ValueError(ONE_PROMPT)
        return prompt[0]
    return prompt


def _is_final(answer: Answer, request: Request) -> bool:
    """Return True if the context worker's first token was the whole answer."""
    most = (
        request.max_tokens
        if isinstance(request, CompletionRequest)
        else request.max_completion_tokens
    )
    return most == 1 or answer.choices[0].finish_reason not in ("length", "not_finished")


async def _done_only(http: web.Request, last: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(http)
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof(last)
    return response
