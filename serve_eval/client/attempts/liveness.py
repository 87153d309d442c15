"""Detect outages, in which no server listens, and make requests wait until one does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from serve_eval.errors import EndpointError, ServerEndedError
from serve_eval.schema.base_url import authority

PROBE_S = 0.5
"""Seconds between two probes of an address where no server listens, and the limit of each."""
SETTLE_S = 0.1
"""Seconds before the first probe: a server may close connections before it stops listening."""


class LivenessGuard:
    """Holds requests back during an outage.

    An outage begins when no server listens and ends when one listens again. Outages without an
    answer in between share `timeout_s`; when it is spent, the run ends, with 0 immediately.
    `notify` receives a line when an outage begins and when it ends, `outages` counts them,
    `returns` those that ended, and `away_s` adds up their time.
    Requests wait only while `watch` runs.
    """

    def __init__(self, timeout_s: float, notify: Callable[[str], None] = lambda line: None) -> None:
        self._timeout_s, self.notify = timeout_s, notify
        self.closed, self.watched = False, False
        self.outages, self.returns, self.away_s = 0, 0, 0.0
        self.spent_s = 0.0
        """Seconds of outages since the last answer. The code that receives an answer sets it to
        0."""
        self._doubt = asyncio.Event()
        self._address = ("", 0)
        self._verdict: asyncio.Future[bool] | None = None

    async def outage(self, host: str, port: int) -> bool:
        """Return True after an outage that refused or broke a connection to this address.

        Returns False immediately if a server has listened all the time. Raises EndpointError if no
        server listens for too long.
        """
        if not self.watched:
            return False
        if self._verdict is None:
            self._verdict = asyncio.get_running_loop().create_future()
            self._address = host, port
            self._doubt.set()
        return await asyncio.shield(
            self._verdict
        )  # a cancelled request must not cancel the probe that all requests wait for

    async def watch(self) -> None:
        """Detect outages until cancelled. Raises EndpointError if one lasts too long."""
        self.watched = True
        try:
            while True:
                await self._doubt.wait()
                self._doubt.clear()
                await asyncio.sleep(SETTLE_S)
                outage = await self._was_there_an_outage()
                if (verdict := self._heard()) is not None:
                    verdict.set_result(outage)
        except EndpointError as error:
            if (verdict := self._heard()) is not None:
                verdict.set_exception(error)
                verdict.exception()  # mark it as retrieved, even if nothing waits
            raise
        finally:
            self.watched = self.closed = False
            if (verdict := self._heard()) is not None:
                verdict.set_result(False)

    def _heard(self) -> asyncio.Future[bool] | None:
        """Return the future that requests wait for, if there is one."""
        verdict, self._verdict = self._verdict, None
        return None if verdict is None or verdict.done() else verdict

    async def _was_there_an_outage(self) -> bool:
        host, port = self._address
        if await listens(host, port):
            return False
        clock = asyncio.get_running_loop().time
        began, place, left_s = clock(), authority(host, port), self._timeout_s - self.spent_s
        if left_s > 0:
            self.notify(f"no server listens at {place}: requests wait up to {left_s:.0f} s")
        self.closed = True
        self.outages += 1
        while True:
            if clock() >= began + left_s:
                lasted = (
                    f": every connection was refused for {self._timeout_s:g} s"
                    if self._timeout_s
                    else ""
                )
                raise ServerEndedError(
                    f"no server listens at {place} any more{lasted}",
                    hint=(
                        "Check the server's log. --set limits.outage_timeout_s=S, or this key of a"
                        " plan, sets how long a restart may take."
                    ),
                )
            await asyncio.sleep(min(PROBE_S, max(0.0, began + left_s - clock())))
            if await listens(host, port):
                break
        self.closed = False
        lasted_s = clock() - began
        self.spent_s += lasted_s
        self.away_s += lasted_s
        self.returns += 1
        self.notify(f"a server listens at {place} again after {lasted_s:.1f} s: requests go on")
        return True


async def listens(host: str, port: int) -> bool:
    """Return True if any address of the host accepts connections, or if that stays unknown.

    It stays unknown if the addresses do not answer within PROBE_S.
    """
    loop, refused = asyncio.get_running_loop(), False
    try:
        async with asyncio.timeout(PROBE_S):
            for family, kind, protocol, _, address in await loop.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            ):
                with socket.socket(family, kind, protocol) as probe:
                    probe.setblocking(False)
                    try:
                        await loop.sock_connect(probe, address)
                    except ConnectionRefusedError:
                        refused = True
                    except OSError:
                        pass  # an unreachable address proves nothing
                    else:
                        return True
    except (OSError, UnicodeError):
        return True
    return not refused
