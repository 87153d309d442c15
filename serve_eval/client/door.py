"""Is anybody still listening? Asked when a connection is refused, and answered within seconds."""

from __future__ import annotations

import asyncio
import socket

from serve_eval.errors import EndpointError

GONE_S = 4.0
"""A server that refuses connections for so long is gone, or starts anew and will not have the same state."""
PROBE_S = 0.5


class Door:
    """`refused` notes a refused connection; `watch` then tries the address until somebody answers or GONE_S are
    over."""

    def __init__(self) -> None:
        self._refused = asyncio.Event()
        self._address: tuple[str, int] | None = None

    def refused(self, host: str, port: int) -> None:
        """Notes that a connection to this address was refused."""
        self._address = host, port
        self._refused.set()

    async def watch(self) -> None:
        """Runs for ever. Raises EndpointError when an address refused every connection for GONE_S seconds."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._refused.wait()
            assert self._address is not None
            host, port = self._address
            deadline = clock() + GONE_S
            while not await _listens(host, port):
                if clock() > deadline:
                    raise EndpointError(
                        f"nobody listens at {host}:{port} any more: every connection was refused for {GONE_S:g} s",
                        hint="Did the server end? Its log says why. Answers that were had are kept.",
                    )
                await asyncio.sleep(PROBE_S)
            self._refused.clear()


async def _listens(host: str, port: int) -> bool:
    """Whether a connection can be made to any address of the host; also when that cannot be told within PROBE_S."""
    loop, refused = asyncio.get_running_loop(), False
    try:
        async with asyncio.timeout(PROBE_S):
            for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
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
