"""Reach the ports of pods through the API server, from ports of this machine.

kubectl sends all connections for a Service to one of its pods. Here each connection goes to the
pod with the fewest open ones. Its bytes travel in binary messages of a WebSocket: channel 0 has
the data, channel 1 the errors of the cluster; each begins with two bytes, the number of the port.

The protocol cannot close one direction alone: a client that closes its side ends the connection.
A tunnel that breaks resets the client's connection, so that a body that ends with its connection
never looks complete.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx_ws
import wsproto.events
import wsproto.utilities

from serve_eval.launchers._kubernetes.cluster import FORBIDDEN, Cluster

PIECE_BYTES = 65536
DATA, ERROR = 0, 1
PREFIX_BYTES = 2
"""Bytes at the beginning of each channel that are no data."""
UNEQUAL = 4
"""Ratio of the numbers of requests of two pods above which a run warns."""
LOST = "the connection to the API server ended"
NORMAL = 1000
"""Code of a WebSocket that was closed in good order: the server closed its connection."""


@dataclass(slots=True)
class PodPort:
    """A port of a pod, with the number of its open and broken connections, and of its requests.

    A request begins when the client writes after the server: HTTP/1.1 takes turns. `trouble` is
    why the last connection broke. `refused`: the API server does not allow it.
    """

    pod: str
    port: int
    open: int = 0
    requests: int = 0
    broken: int = 0
    trouble: str = ""
    refused: bool = False


class BrokenTunnelError(Exception):
    """The tunnel ended before the server closed its connection."""


@dataclass
class Tunnels:
    """Carries connections to the ports of pods. `usable` returns the names of Ready pods."""

    cluster: Cluster
    notify: Callable[[str], None]
    usable: Callable[[], frozenset[str]]
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def listen(self, targets: Sequence[PodPort]) -> AsyncIterator[int]:
        """Listen on a free port of 127.0.0.1, and spread its connections over the targets."""

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # asyncio reports the cancellation of a task of its own as an error.
            task = asyncio.create_task(self._carry(self._choose(targets), reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=PIECE_BYTES)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _choose(self, targets: Sequence[PodPort]) -> PodPort:
        usable = self.usable()
        ready = [one for one in targets if one.pod in usable] or targets
        return min(ready, key=lambda one: (one.open, one.requests))

    async def _carry(
        self, target: PodPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        target.open += 1
        try:
            await self._exchange(target, reader, writer)
            with suppress(OSError):
                writer.close()
                await writer.wait_closed()
        except Exception as error:  # several at once come as a group
            _reset(writer)
            target.broken += 1
            target.trouble, target.refused = _describe(error)
            if target.broken == 1:
                self.notify(f"warning: a connection to pod {target.pod} broke: {target.trouble}")
        finally:
            target.open -= 1
            writer.transport.abort()

    async def _exchange(
        self, target: PodPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry bytes both ways until one side closes. Raise BrokenTunnelError or a group."""
        finished = False
        try:
            async with self.cluster.tunnel(target.pod, target.port) as web_socket:
                await _pass_on(target, web_socket, reader, writer)
                finished = True
        except Exception:
            if not finished:  # else only the farewell failed
                raise


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with a reset: closing it alone would end it in good order."""
    with suppress(OSError):
        link: socket.socket = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@dataclass(slots=True)
class _Turns:
    """Tells the requests of a connection apart. `answered`: the server wrote last, or nobody."""

    target: PodPort
    answered: bool = True

    def ask(self) -> None:
        self.target.requests += self.answered
        self.answered = False


async def _pass_on(
    target: PodPort,
    web_socket: httpx_ws.AsyncWebSocketSession,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    turns = _Turns(target)
    ways = [
        asyncio.create_task(_send(reader, web_socket, turns)),
        asyncio.create_task(_receive(web_socket, writer, turns)),
    ]
    sending, receiving = ways
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        # A server that has closed its connection may leave nothing to send to.
        error = (receiving if receiving.done() else sending).exception()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
    if error is not None:
        raise error


async def _send(
    reader: asyncio.StreamReader, web_socket: httpx_ws.AsyncWebSocketSession, turns: _Turns
) -> None:
    """Send what the client writes, until it closes its side."""
    while True:
        try:
            piece = await reader.read(PIECE_BYTES)
        except ConnectionError:
            return
        if not piece:
            return
        turns.ask()
        try:
            await web_socket.send_bytes(bytes([DATA]) + piece)
        except (httpx_ws.HTTPXWSException, wsproto.utilities.LocalProtocolError) as error:
            raise BrokenTunnelError(LOST) from error


async def _receive(
    web_socket: httpx_ws.AsyncWebSocketSession, writer: asyncio.StreamWriter, turns: _Turns
) -> None:
    """Write what the server sends, until it closes its connection."""
    skipped = {DATA: 0, ERROR: 0}
    while True:
        try:
            event = await web_socket.receive()
        except httpx_ws.WebSocketDisconnect as end:
            if end.code == NORMAL:
                return
            raise BrokenTunnelError(f"closed with code {end.code} {end.reason}".strip()) from end
        except httpx_ws.HTTPXWSException as error:
            raise BrokenTunnelError(LOST) from error
        channel, data = _read_message(event, skipped)
        if channel == ERROR and data:
            raise BrokenTunnelError(data.decode(errors="replace").strip())
        if channel == DATA and data:
            turns.answered = True
            try:
                writer.write(data)
                await writer.drain()
            except ConnectionError:
                return


def _read_message(event: object, skipped: dict[int, int]) -> tuple[int, bytes]:
    """Return the channel and the data of a message, without the number of the port."""
    if not isinstance(event, wsproto.events.BytesMessage) or not event.data:
        raise BrokenTunnelError("the API server sent an unexpected message")
    channel, data = event.data[0], bytes(event.data[1:])
    if channel not in skipped:
        raise BrokenTunnelError(f"the API server used an unexpected channel {channel}")
    left = min(PREFIX_BYTES - skipped[channel], len(data))
    skipped[channel] += left
    return channel, data[left:]


def _describe(error: BaseException) -> tuple[str, bool]:
    """Return the reason in words, and True if the API server does not allow the tunnel."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, httpx_ws.WebSocketUpgradeError):
        status = error.response.status_code
        return f"the API server refuses the tunnel with HTTP {status}", status == FORBIDDEN
    return str(error) or type(error).__name__, False


@asynccontextmanager
async def open_tunnels(
    cluster: Cluster,
    ports: Mapping[str, int],
    usable: Callable[[], frozenset[str]],
    notify: Callable[[str], None],
) -> AsyncIterator[tuple[int, dict[int, PodPort]]]:
    """Yield a local port that reaches all pods, and one for each pod, by number.

    `ports` has the port of each pod. When the block ends, say how many requests each pod got.
    """
    targets = {pod: PodPort(pod, port) for pod, port in ports.items()}
    tunnels = Tunnels(cluster, notify, usable)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(tunnels.close)
        front = await stack.enter_async_context(tunnels.listen(list(targets.values())))
        own = {}
        for pod, port in ports.items():
            one = PodPort(pod, port)
            own[await stack.enter_async_context(tunnels.listen([one]))] = one
        try:
            yield front, own
        finally:
            _tell_spread(list(targets.values()), notify)


def _tell_spread(targets: Sequence[PodPort], notify: Callable[[str], None]) -> None:
    """Say how many requests each pod got; warn of a pod that had little part in the result."""
    if len(targets) < 2:
        return
    told = ", ".join(f"{one.pod} {one.requests}" for one in targets)
    counts = [one.requests for one in targets]
    if UNEQUAL * min(counts) < max(counts):
        notify(
            f"warning: the pods got unequal shares of the requests: {told}; more requests in flight"
            " spread better"
        )
    else:
        notify(f"requests per pod: {told}")
