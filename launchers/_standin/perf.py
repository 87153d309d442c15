"""Report the records of requests at GET /perf_metrics, and the counters of an orchestrator.

Reading removes the records. Times are in seconds of a clock that starts with the machine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from serve_eval.launchers._http.requests import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin.cluster import Workers
from serve_eval.launchers._standin.config import Orchestrator
from serve_eval.launchers._standin.fields import Request
from serve_eval.launchers._standin.legs import Legs
from serve_eval.launchers._standin.serving import log
from serve_eval.launchers._standin.worker_config import WorkerConfig

BYTES_PER_TOKEN = 131072
"""Bytes of the KV cache: 32 layers, 8 heads of 128, keys and values of 2 bytes."""
BYTES_PER_S = 50e9
"""Rate of the transfer, which is reported but not simulated."""


class Performed:
    """The records of a worker; none unless its config asks for them."""

    def __init__(self, config: WorkerConfig) -> None:
        most = (
            config.args.get("perf_metrics_max_requests")
            if config.args.get("return_perf_metrics")
            else 0
        )
        self._records: deque[dict[str, Any]] = deque(maxlen=most or 0)
        self._number = 0
        self.offset_s = 0.0
        """Seconds by which the collector's clock is ahead."""

    def note(
        self, request: Request, *, arrived: float, began: float, prompt_tokens: int
    ) -> dict[str, Any]:
        """Record a request that was processed from `began` until now, and return its times."""
        params, now = request.disaggregated_params, time.monotonic()
        generation = params is not None and params.request_type == "generation_only"
        size = prompt_tokens * BYTES_PER_TOKEN if generation else 0
        timing: dict[str, Any] = {
            "arrival_time": arrived,
            "first_scheduled_time": began,
            "first_token_time": now,
            "last_token_time": now,
            "server_arrival_time": arrived,
            "server_first_token_time": now,
        }
        if generation:
            timing |= {
                "kv_cache_transfer_start": began,
                "kv_cache_transfer_end": began + size / BYTES_PER_S,
            }
        timing = {name: at + self.offset_s for name, at in timing.items()}
        if generation:
            timing["kv_cache_size"] = size
        blocks = -(-prompt_tokens // 32)
        kv_cache = {"num_total_allocated_blocks": blocks, "num_new_allocated_blocks": blocks}
        kv_cache |= {"num_reused_blocks": 0, "num_missed_blocks": blocks}
        metrics = {
            "first_iter": 0,
            "last_iter": 0,
            "timing_metrics": timing,
            "kv_cache_metrics": kv_cache,
        }
        self._number += 1
        one: dict[str, Any] = {"request_id": self._number, "perf_metrics": metrics}
        if params is not None:
            one["ctx_request_id"] = params.disagg_request_id or params.ctx_request_id
        self._records.append(one)
        return timing

    def drain(self) -> list[dict[str, Any]]:
        told = list(self._records)
        self._records.clear()
        return told


class Routed:
    """The servers that an orchestrator gave each request to.

    It holds at most `most` requests until their records arrive.
    """

    def __init__(self, most: int) -> None:
        self._requests: deque[tuple[str, str, int, float, float]] = deque(maxlen=most)
        self._of_servers: dict[str, dict[int, dict[str, Any]]] = {}

    def note(self, context: str, generation: str, number: int, arrived: float) -> None:
        self._requests.append((context, generation, number, arrived, time.monotonic()))

    def drain(self, of_servers: Mapping[str, Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the requests that are complete with the records of the servers."""
        for url, records in of_servers.items():
            mine = self._of_servers.setdefault(url, {})
            mine |= {one["ctx_request_id"]: one for one in records if "ctx_request_id" in one}
        told, left = [], []
        for context, generation, number, arrived, first_token in self._requests:
            of_generation = self._of_servers.get(generation, {}).pop(number, None)
            if of_generation is None:
                left.append((context, generation, number, arrived, first_token))
                continue
            told.append(
                {
                    "ctx_server": context,
                    "gen_server": generation,
                    "disagg_server_arrival_time": arrived,
                    "disagg_server_first_token_time": first_token,
                    "ctx_perf_metrics": self._of_servers.get(context, {}).pop(number, None),
                    "gen_perf_metrics": of_generation,
                }
            )
        self._requests = deque(left, maxlen=self._requests.maxlen)
        return told


class Counted:
    """Count requests, and hold which workers had each."""

    def __init__(self, config: Orchestrator, workers: Workers, legs: Legs) -> None:
        self._workers, self._legs = workers, legs
        self.requests = 0
        self.routed = Routed(config.perf_metrics_max_requests)

    def add_routes(self, app: web.Application, *, perf_metrics: bool) -> None:
        """Add the routes; only versions before main have /perf_metrics."""
        if perf_metrics:
            app.router.add_get("/perf_metrics", self._perf_metrics)
        app.router.add_get("/prometheus/metrics", self._to_prometheus)
        app.router.add_get("/prometheus/metrics/", self._prometheus)

    async def _perf_metrics(self, request: web.Request) -> web.Response:
        told: dict[str, list[dict[str, Any]]] = {}
        for url in (*self._workers.context.servers, *self._workers.generation.servers):
            try:
                async with self._legs.client.get(f"http://{url}/perf_metrics") as response:
                    told[url] = await response.json()
            except (aiohttp.ClientError, OSError, ValueError) as error:
                log(f"no metrics of {url}: {error}")
        return json_response(200, encode(self.routed.drain(told)))

    async def _to_prometheus(self, request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/prometheus/metrics/"})

    async def _prometheus(self, request: web.Request) -> web.Response:
        counts = {"total_requests": self.requests}
        counts |= {
            "ctx_retry_requests": self._workers.context.retries,
            "gen_retry_requests": self._workers.generation.retries,
        }
        lines = [
            f"# TYPE {name}_total counter\n{name}_total {count}.0\n"
            for name, count in counts.items()
        ]
        return web.Response(text="".join(lines))
