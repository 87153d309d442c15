"""Is anybody still listening? Asked when a connection is refused or lost; while nobody does,
senders wait here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from serve_eval.errors import EndpointError
from serve_eval.schema.base_url import authority

PROBE_S = 0.5
"""Seconds between two tries of an address where no server listens, and the limit of each."""
SETTLE_S = 0.1
"""A server that ends may end its connections before it ends to listen."""


class LivenessGuard:
    """Lets requests out while somebody listens at the endpoint.

    An outage begins when no server listens, and is over once somebody does; without an answer in
    between, the next one goes on with its time. One that lasts longer than `timeout_s` in all ends
    the run, with 0 at once. `notify` gets a line when an outage begins and when it is over. Nobody
    waits at a guard that is not watched.
    """

    def __init__(self, timeout_s: float, notify: Callable[[str], None] = lambda line: None) -> None:
        self._timeout_s, self.notify = timeout_s, notify
        self.closed, self.watched = False, False
        self.spent_s = 0.0
        """Seconds of outages since the last answer. Whoever gets an answer sets it to 0."""
        self._doubt = asyncio.Event()
        self._address = ("", 0)
        self._verdict: asyncio.Future[bool] | None = None

    async def outage(self, host: str, port: int) -> bool:
        """Finds out whether a connection was refused or lost because no server listens at this
        address.

        Returns True when somebody listens there again, False at once when somebody does all the
        time. Raises EndpointError when nobody does for too long.
        """
        if not self.watched:
            return False
        if self._verdict is None:
            self._verdict = asyncio.get_running_loop().create_future()
            self._address = host, port
            self._doubt.set()
        return await asyncio.shield(
            self._verdict
        )  # one that is cancelled must not cancel what all wait for

    async def watch(self) -> None:
        """Run until cancelled. Raises EndpointError when no server listens for the time that an
        outage has.
        """
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
                verdict.exception()  # it is told, also when nobody waits
            raise
        finally:
            self.watched = self.closed = False
            if (verdict := self._heard()) is not None:
                verdict.set_result(False)

    def _heard(self) -> asyncio.Future[bool] | None:
        """What those wait for who wait now."""
        verdict, self._verdict = self._verdict, None
        return None if verdict is None or verdict.done() else verdict

    async def _was_there_an_outage(self) -> bool:
        host, port = self._address
        if await _listens(host, port):
            return False
        clock = asyncio.get_running_loop().time
        began, place, left_s = clock(), authority(host, port), self._timeout_s - self.spent_s
        if left_s > 0:
            self.notify(f"no server listens at {place}: requests wait, for {left_s:.0f} s at most")
        self.closed = True
        while True:
            if clock() >= began + left_s:
                lasted = (
                    f": every connection was refused for {self._timeout_s:g} s"
                    if self._timeout_s
                    else ""
                )
                raise EndpointError(
                    f"no server listens at {place} any more{lasted}",
                    hint=(
                        "Did the server end? Its log says why. --outage-timeout is how long a"
                        " restart may take."
                    ),
                )
            await asyncio.sleep(min(PROBE_S, max(0.0, began + left_s - clock())))
            if await _listens(host, port):
                break
        self.closed = False
        lasted_s = clock() - began
        self.spent_s += lasted_s
        self.notify(f"somebody listens at {place} again, after {lasted_s:.1f} s: requests go on")
        return True


async def _listens(host: str, port: int) -> bool:
    """Whether a connection can be made to any address of the host; also when that cannot be told
    within PROBE_S.
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
                        pass  # an address that this machine cannot reach says nothing
                    else:
                        return True
    except (OSError, UnicodeError):
        return True
    return not refused
