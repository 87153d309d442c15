"""Routes of a worker that depend on its configuration alone."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from serve_eval.launchers._http.errors import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin import model
from serve_eval.launchers._standin.options import Flavour, version_of
from serve_eval.launchers._standin.worker_config import WorkerConfig


class PlainRoutes:
    """Answer by the configuration: version, models, tokens."""

    def __init__(self, config: WorkerConfig, flavour: Flavour) -> None:
        self.config, self.flavour = config, flavour

    async def version(self, request: web.Request) -> web.Response:
        return json_response(200, encode({"version": version_of(self.flavour)}))

    async def models(self, request: web.Request) -> web.Response:
        path = Path(self.config.model)
        name = self.config.served_model_name or (
            path.absolute().name if path.is_dir() else self.config.model
        )
        one = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "tensorrt_llm",
        }
        return json_response(200, encode({"object": "list", "data": [one]}))

    async def nothing(self, request: web.Request) -> web.Response:
        return json_response(200, b"[]")

    async def info(self, request: web.Request) -> web.Response:
        return json_response(200, encode({"disaggregated_params": {}}))

    async def tokenize(self, request: web.Request) -> web.Response:
        ids = [model.BOS, *model.encode((await request.json())["prompt"])]
        return json_response(200, encode({"count": len(ids), "tokens": ids}))

    async def openapi(self, request: web.Request) -> web.Response:
        """Return the paths of the application, as FastAPI describes them."""
        found: dict[str, dict[str, Any]] = {}
        for route in request.app.router.routes():
            if route.resource is not None and route.method in ("GET", "POST"):
                said = {"responses": {"200": {"description": "Successful Response"}}}
                found.setdefault(route.resource.canonical, {})[route.method.lower()] = said
        info = {"title": "FastAPI", "version": "0.1.0"}
        return json_response(200, encode({"openapi": "3.1.0", "info": info, "paths": found}))


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def route_metrics(handler: Handler) -> Iterator[tuple[str, Handler]]:
    """Yield the routes of the metrics: a mounted application, whose path ends in a slash."""
    path = "/prometheus/metrics"

    async def redirect(request: web.Request) -> web.StreamResponse:
        where = f"http://{request.host}{path}/"
        return web.Response(status=307, headers={"Location": where})

    yield path, redirect
    yield f"{path}/", handler
