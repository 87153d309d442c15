"""Service discovery with etcd, over etcd's HTTP gateway; workers keep a key alive by a lease."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from serve_eval.launchers._standin.serving import log

SCHEME = "etcd://"
CLIENT_S = 10.0
RETRY_S = 5.0


class Etcd:
    """A client of the first of the addresses `etcd://host:port,etcd://host:port`."""

    def __init__(self, uri: str) -> None:
        place = urlsplit(uri.split(",")[0])
        self._url = f"http://{place.hostname}:{place.port}"

    async def below(self, start: str) -> dict[str, str]:
        """Return the keys with this prefix and their values. Raise aiohttp.ClientError."""
        end = start[:-1] + chr(ord(start[-1]) + 1)
        told = await self._ask("kv/range", key=_encode(start), range_end=_encode(end))
        return {_plain(one["key"]): _plain(one["value"]) for one in told.get("kvs", ())}

    @asynccontextmanager
    async def keep(
        self, key: str, value: str, *, ttl_s: int, beat_s: float | None
    ) -> AsyncIterator[None]:
        """Hold a key for the block, or until the lease ends if the key cannot be deleted."""
        lease = None
        with suppress(aiohttp.ClientError, OSError):
            lease = await self._put(key, value, ttl_s)
        task = asyncio.create_task(self._stay(key, value, ttl_s, beat_s, lease))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            with suppress(aiohttp.ClientError, OSError):
                await self._ask("kv/deleterange", key=_encode(key))

    async def _put(self, key: str, value: str, ttl_s: int) -> str:
        lease = str((await self._ask("lease/grant", TTL=ttl_s))["ID"])
        await self._ask("kv/put", key=_encode(key), value=_encode(value), lease=lease)
        return lease

    async def _stay(
        self, key: str, value: str, ttl_s: int, beat_s: float | None, lease: str | None
    ) -> None:
        while True:
            try:
                if lease is None:
                    await asyncio.sleep(RETRY_S)
                    lease = await self._put(key, value, ttl_s)
                if beat_s is None:
                    return
                await asyncio.sleep(beat_s)
                await self._ask("lease/keepalive", ID=lease)
            except (aiohttp.ClientError, OSError) as error:
                log(f"Etcd3 error: {error}")
                lease = None

    async def _ask(self, path: str, **body: Any) -> dict[str, Any]:
        limit = aiohttp.ClientTimeout(total=CLIENT_S)
        async with (
            aiohttp.ClientSession(timeout=limit, trust_env=False) as session,
            session.post(f"{self._url}/v3/{path}", json=body) as response,
        ):
            response.raise_for_status()
            told: dict[str, Any] = await response.json()
            return told


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _plain(text: str) -> str:
    return base64.b64decode(text).decode()
