"""Know the workers of an orchestrator, from its file or by service discovery."""

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

from serve_eval.launchers._http.requests import encode
from serve_eval.launchers._http.server import json_response
from serve_eval.launchers._standin.config import (
    ROLE_NUMBERS,
    ClusterSection,
    Orchestrator,
    RouterSection,
)
from serve_eval.launchers._standin.etcd import SCHEME, Etcd
from serve_eval.launchers._standin.fields import CompletionRequest, Request
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.serving import log

POLL_S = float(os.environ.get("STANDIN_POLL_S", "3"))
"""Seconds between checks of the workers' health while starting."""
WATCH_S = 0.5
"""Seconds between checks of the registered workers."""


class Workers:
    """Context and generation workers, each kind behind its router."""

    def __init__(self, config: Orchestrator, flavour: Flavour) -> None:
        self.config = config
        self.context = Router(config.ctx_router, config.urls("ctx"), flavour)
        self.generation = Router(config.gen_router, config.urls("gen"), flavour)
        self._store = Store()
        self._known: dict[str, tuple[Router, str]] = {}
        self._etcd: Etcd | None = None
        self._listed: dict[str, str] = {}
        if config.cluster and config.cluster.cluster_uri.startswith(SCHEME):
            self._etcd = Etcd(config.cluster.cluster_uri)

    def add_routes(self, app: web.Application) -> None:
        """Add the routes with which workers register here."""
        if self.config.cluster and self._etcd is None:
            self._store.add_routes(app)

    async def are_healthy(self, session: aiohttp.ClientSession, timeout_s: float) -> bool:
        """Greet the workers of the file, then wait until all are healthy.

        Return False after `timeout_s`.
        """
        urls = [*self.config.urls("ctx"), *self.config.urls("gen")]
        deadline = time.monotonic() + timeout_s
        for url in urls:
            await _greet(session, url)
        while True:
            if all([await _is_healthy(session, url) for url in urls]):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(POLL_S, left))

    @asynccontextmanager
    async def watch(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        """Follow registrations for the length of the block, in cluster mode."""
        tasks = []
        if self.config.cluster:
            tasks = [
                asyncio.create_task(self._store.forget()),
                asyncio.create_task(self._follow(session)),
            ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, session: aiohttp.ClientSession) -> None:
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
                    await _greet(session, url)
                    router = self.generation if worker["role"] == 1 else self.context
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

    def list_registered(self) -> dict[str, list[dict[str, Any]]]:
        """Return the registered workers by section."""
        assert self.config.cluster is not None
        found = self._listed if self._etcd else self._store.below(prefix(self.config.cluster))
        workers = [json.loads(value) for value in found.values()]
        return {
            "context_servers": [one for one in workers if one["role"] == 0],
            "generation_servers": [one for one in workers if one["role"] == 1],
        }

    def are_ready(self) -> bool:
        """Return True if enough workers have registered."""
        if not self.config.cluster:
            return True
        least, there = self.config.cluster.minimal_instances, self.list_registered()
        return all(len(there[name]) >= least.get(name, 1) for name in there)


async def _greet(session: aiohttp.ClientSession, url: str) -> None:
    """Send the first request to a worker, for its clock; failures are only logged."""
    try:
        closing, sent = {"Connection": "close"}, time.monotonic()
        async with session.get(f"http://{url}/steady_clock_offset", headers=closing) as response:
            remote = (await response.json())["receive_ts"]
        body = {"offset": sent - remote}
        async with session.post(f"http://{url}/steady_clock_offset", json=body, headers=closing):
            pass
    except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
        log(f"cannot get the clock of {url}: {error}")
    try:
        async with session.get(f"http://{url}/server_info") as response:
            await response.read()
    except (aiohttp.ClientError, OSError, ValueError) as error:
        log(f"cannot get server_info of {url}: {error}")


async def _is_healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"http://{url}/health") as response:
            return response.status == 200
    except (aiohttp.ClientError, OSError, ValueError):
        return False


TYPES: dict[Flavour, tuple[str, ...]] = {
    "old": ("round_robin", "load_balancing", "kv_cache_aware"),
    "v12": ("round_robin", "load_balancing", "kv_cache_aware", "conversation"),
    "main": (
        "round_robin",
        "load_balancing",
        "kv_cache_aware",
        "conversation",
        "centralized_kv_cache_aware",
        "remote_http",
    ),
}


class Router:
    """A router that takes workers in turns, or with `load_balancing` the least busy one.

    With `conversation`, all turns of a chat go to the worker of its first one.

    Raises ValueError for a type that the flavour does not have.
    """

    def __init__(self, section: RouterSection, servers: list[str], flavour: Flavour) -> None:
        self._kind = section.type.lower()
        if self._kind not in TYPES[flavour]:
            known = list(TYPES[flavour])
            raise ValueError(
                f"Unsupported router type: {section.type}. Supported types are: {known}"
            )
        self._homes: dict[str, str] = {}
        self.servers, self.busy = list(servers), dict.fromkeys(servers, 0)
        self._number, self._turn = section.server_role, 0
        self._counts_tokens = flavour != "main" and bool(section.args.get("use_tokens"))
        self.retries = 0

    def next(self, request: Request, but: str | None = None) -> str:
        """Return the next worker.

        Raises ValueError without a server, and for a request whose tokens a version before main
        cannot count: any for generation, and any chat.
        """
        if not self.servers:
            raise ValueError(f"No {self._number} servers available")
        if (
            self._kind == "load_balancing"
            and self._counts_tokens
            and (self._number or not isinstance(request, CompletionRequest))
        ):
            raise ValueError("Unsupported request type: its tokens cannot be counted")
        free = [one for one in self.servers if one != but] or self.servers
        if self._kind == "conversation":
            key = _name_conversation(request)
            if self._homes.get(key) not in free:
                self._homes[key] = free[len(self._homes) % len(free)]
            return self._homes[key]
        if self._kind == "load_balancing":
            return min(free, key=lambda one: self.busy.get(one, 0))
        chosen = self.servers[self._turn % len(self.servers)]
        self._turn += 1
        return chosen if chosen in free else self.next(request, but)


def _name_conversation(request: Request) -> str:
    """Return the id that a request has, or else its text up to the first turn of the user."""
    params = getattr(request, "conversation_params", None) or {}
    if (name := params.get("conversation_id")) is not None:
        return str(name)
    if isinstance(request, CompletionRequest):
        return str(request.prompt)
    turns = [dict(turn) for turn in request.messages]
    first = next((i for i, turn in enumerate(turns) if turn.get("role") == "user"), 0)
    return str([(turn.get("role"), turn.get("content")) for turn in turns[: first + 1]])


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
