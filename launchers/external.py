"""An endpoint that is already running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serve_eval.errors import LaunchError
from serve_eval.schema import Endpoint, LaunchContext


def commands(context: LaunchContext, *, base_url: str, ready_timeout_s: float = 0.0) -> list[list[str]]:
    """Nothing is started."""
    return []


@asynccontextmanager
async def launch(context: LaunchContext, *, base_url: str, ready_timeout_s: float = 0.0) -> AsyncIterator[Endpoint]:
    """Yields the endpoint at `base_url`, after waiting up to `ready_timeout_s` until anything answers there over HTTP.

    Raises LaunchError when nothing does.
    """
    if ready_timeout_s > 0:
        await _wait(base_url, ready_timeout_s)
    yield Endpoint(base_url=base_url, model=context.model, info={"launcher": "external"})


async def _wait(base_url: str, timeout_s: float) -> None:
    import httpx

    deadline = time.monotonic() + timeout_s
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        while True:
            try:
                await client.get(base_url + "/models")
            except httpx.HTTPError as error:
                if time.monotonic() > deadline:
                    raise LaunchError(f"{base_url} did not answer within {timeout_s:g} s: {error}") from error
                await asyncio.sleep(0.2)
            else:
                return
