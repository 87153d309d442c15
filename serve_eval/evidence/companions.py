"""Join the runs of one command that ask the same endpoint, in this process.

A comparison asks its endpoints some prompts again, by runs of their own. Servers count the requests
of all runs, which would otherwise look like those of other clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from serve_eval.client.client import Client
from serve_eval.schema import SamplingDefaults


class Companions:
    """The clients of all runs that one command has, and what was found of their endpoints."""

    def __init__(self) -> None:
        self._clients: list[Client] = []
        self._defaults: dict[tuple[str, str | None, bool], asyncio.Task[SamplingDefaults]] = {}

    async def share_defaults(
        self, client: Client, probe: Callable[[], Awaitable[SamplingDefaults]], *, chat: bool
    ) -> SamplingDefaults:
        """Return the sampling defaults of a client's endpoint, which one of its runs probes."""
        key = client.endpoint.base_url, client.endpoint.model, chat
        if key not in self._defaults:
            self._defaults[key] = asyncio.ensure_future(_run(probe))
        return await asyncio.shield(self._defaults[key])

    def join(self, client: Client) -> None:
        """Add the client of a run. It stays after the end of the run."""
        self._clients.append(client)

    def count_sent(self, client: Client) -> int:
        """Return the requests that the others have sent so far to this client's endpoint."""
        return sum(one.sent for one in self._others(client))

    def count_counted(self, client: Client) -> int:
        """Return those of them that the engine has surely counted.

        Those in flight come later, and so may as many of those before: an engine counts a request
        shortly after its answer.
        """
        return sum(max(0, one.sent - 2 * one.attempts.in_flight) for one in self._others(client))

    def _others(self, client: Client) -> Iterator[Client]:
        url = client.endpoint.base_url
        for one in self._clients:
            if one is not client and one.endpoint.base_url == url:
                yield one


async def _run(probe: Callable[[], Awaitable[SamplingDefaults]]) -> SamplingDefaults:
    return await probe()
