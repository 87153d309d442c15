"""Service discovery over HTTP: the orchestrator's key-value store, and a worker's heartbeats."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
from aiohttp import web

from serve_eval.launchers._http.errors import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin.config import ROLE_NUMBERS, ClusterSection
from serve_eval.launchers._standin.etcd import SCHEME, Etcd
from serve_eval.launchers._standin.serving import log

CLIENT_S = 5.0
RETRY_S = 5.0


def prefix(cluster: ClusterSection) -> str:
    return f"/trtllm-disagg/{cluster.cluster_name}/workers/"


class Store:
    """Keys that expire. Expired ones are dropped once a second."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, float | None]] = {}

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/set", self._set)
        app.router.add_get("/get", self._get)
        app.router.add_get("/get_prefix", self._get_prefix)
        app.router.add_get("/expire", self._expire)
        app.router.add_delete("/delete", self._delete)

    def below(self, start: str) -> dict[str, str]:
        return {key: value for key, (value, _) in self._held.items() if key.startswith(start)}

    async def forget(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            self._held = {
                key: one for key, one in self._held.items() if one[1] is None or one[1] > now
            }

    async def _set(self, request: web.Request) -> web.Response:
        body = await request.json()
        key, ttl = body["key"], body.get("ttl", -1)
        if key in self._held and not body.get("overwrite_if_exists", True):
            return _result(False)
        self._held[key] = body["value"], time.monotonic() + ttl if ttl > 0 else None
        return _result(True)

    async def _get(self, request: web.Request) -> web.Response:
        return _result(self._held.get(request.query["key"], (None,))[0])

    async def _get_prefix(self, request: web.Request) -> web.Response:
        found = self.below(request.query["key_prefix"])
        return _result(
            list(found) if request.query.get("keys_only") in ("1", "true", "True") else found
        )

    async def _expire(self, request: web.Request) -> web.Response:
        key = request.query["key"]
        if key not in self._held:
            return _result(False)
        self._held[key] = self._held[key][0], time.monotonic() + float(request.query["ttl"])
        return _result(True)

    async def _delete(self, request: web.Request) -> web.Response:
        return _result(self._held.pop(request.query["key"], None) is not None)


def _result(value: Any) -> web.Response:
    return json_response(200 if value else 400, encode({"result": value}))


@asynccontextmanager
async def stay_registered(
    cluster: ClusterSection, role: str, host: str, port: int, *, heartbeats: bool = True
) -> AsyncIterator[None]:
    """Keep a worker registered for the length of the block.

    It enters the block after the first attempt, which may have failed; attempts go on without a
    limit.

    As in the real worker, heartbeats that are not faster than the time-out are left out.
    """
    number = random.randint(0, 999)
    worker_id = f"{role}-{host}:{port}-{int(time.time() * 1000)}-{os.getpid()}-{number:03d}"
    value = {"worker_id": worker_id, "host": host, "port": port, "role": ROLE_NUMBERS[role]}
    entry = {"key": prefix(cluster) + worker_id, "value": json.dumps(value), "expire_time": -1}
    entry |= {"ttl": cluster.inactive_timeout_sec, "overwrite_if_exists": False}
    beats = heartbeats and cluster.heartbeat_interval_sec < cluster.inactive_timeout_sec
    if cluster.cluster_uri.startswith(SCHEME):
        beat_s = cluster.heartbeat_interval_sec if beats else None
        ttl_s = cluster.inactive_timeout_sec
        async with Etcd(cluster.cluster_uri).keep(
            str(entry["key"]), str(entry["value"]), ttl_s=ttl_s, beat_s=beat_s
        ):
            yield
        return
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=CLIENT_S), trust_env=False
    ) as session:

        async def ask(method: str, path: str, **more: Any) -> bool:
            try:
                async with session.request(method, cluster.cluster_uri + path, **more) as response:
                    return response.status == 200
            except (aiohttp.ClientError, OSError) as error:
                log(f"service discovery: {error}")
                return False

        async def stay(known: bool) -> None:
            while True:
                while not known:
                    await asyncio.sleep(RETRY_S)
                    known = await ask("POST", "/set", json=entry)
                if not beats:
                    return
                await asyncio.sleep(cluster.heartbeat_interval_sec)
                ttl = {"key": str(entry["key"]), "ttl": str(cluster.inactive_timeout_sec)}
                if not await ask("GET", "/expire", params=ttl):
                    known = await ask("POST", "/set", json=entry)

        task = asyncio.create_task(stay(await ask("POST", "/set", json=entry)))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await ask("DELETE", "/delete", params={"key": str(entry["key"])})
