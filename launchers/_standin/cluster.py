"""The workers that an orchestrator knows, from its file or by service discovery."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from serve_eval.launchers._standin.config import Orchestrator
from serve_eval.launchers._standin.discovery import Store, prefix
from serve_eval.launchers._standin.etcd import SCHEME, Etcd
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.routers import Router
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
