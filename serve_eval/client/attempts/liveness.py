"""Make requests wait while no server listens or the endpoint is starting.

Since 2026 trtllm-serve listens while it loads its model, and answers every route with a 503 whose
header says so. This does not count as an attempt, because nothing has failed.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable

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


POLL_S = 1.0
"""Seconds between two probes of a starting endpoint; also the Retry-After of such a server."""
LOOK_S = 10.0
"""Seconds that one probe may take."""
SAID = "the endpoint is starting"
HINT = (
    "The server is loading its model. Wait, or allow more time: --set limits.outage_timeout_s=S, or"
    " this key of a plan, or --set launcher.ready_timeout_s=S with --base-url."
)


class Start:
    """Holds requests back until the endpoint has started. One probe serves all of them.

    `still` asks the endpoint if it is still starting. The time limit is that of outages, shared
    with those of `liveness` until an answer comes. `met` counts the requests that waited here.
    """

    def __init__(
        self, timeout_s: float, liveness: LivenessGuard, still: Callable[[], Awaitable[bool]]
    ) -> None:
        self._timeout_s, self._liveness, self._still = timeout_s, liveness, still
        self._looking: asyncio.Task[bool] | None = None
        self.met = self._waiting = 0

    async def over(self) -> bool:
        """Return True once the endpoint no longer reports that it is starting.

        Returns False if that takes longer than the limit.
        """
        self.met, self._waiting = self.met + 1, self._waiting + 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(
            self._looking
        )  # a cancelled request must not cancel the probe that all requests wait for

    @property
    def in_vain(self) -> str:
        """The message for a start that takes too long."""
        return (
            f"the endpoint is still starting after {self._timeout_s:g} s"
            if self._timeout_s
            else SAID
        )

    async def close(self) -> None:
        """Stop probing."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> bool:
        began, left_s = time.monotonic(), self._timeout_s - self._liveness.spent_s
        if left_s > 0:
            self._liveness.notify(
                f"{SAID}: requests wait up to {left_s:.0f} s (limits.outage_timeout_s)"
            )
        while (passed_s := time.monotonic() - began) < left_s:
            await asyncio.sleep(min(POLL_S, left_s - passed_s))
            if not await self._still():
                break
        else:
            self._liveness.spent_s = self._timeout_s
            return False
        passed_s = time.monotonic() - began
        self._liveness.spent_s += passed_s
        waited, self._waiting = self._waiting, 0
        requests = "1 request goes on" if waited == 1 else f"{waited} requests go on"
        self._liveness.notify(
            f"the endpoint no longer reports a start after {passed_s:.1f} s: {requests}"
        )
        return True
