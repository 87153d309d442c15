"""The routes on which an orchestrator reports its counters and the records of its workers."""

from __future__ import annotations

from typing import Any

import aiohttp
from aiohttp import web

from serve_eval.launchers._http.errors import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin.cluster import Workers
from serve_eval.launchers._standin.config import Orchestrator
from serve_eval.launchers._standin.legs import Legs
from serve_eval.launchers._standin.perf import Routed
from serve_eval.launchers._standin.serving import log


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
