"""Connections to one endpoint: opened when they are needed, kept while they are good, never shared."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

import aiohappyeyeballs

from serve_eval.address import authority, on_the_wire
from serve_eval.client.http1.connection import Line
from serve_eval.client.http1.steps import IDLE_S, Steps
from serve_eval.client.http1.tunnel import Tunnel
from serve_eval.client.reply import Reply
from serve_eval.errors import PlanError

KEEPALIVE_S = 3.0
"""Below the 5 s after which trtllm-serve closes an idle connection: a POST on a closing connection is lost."""
HASTY, HASTY_S = 3, 0.5
"""A server that closed so many connections in a row, each so soon behind its answer, does it always: llama-server does
behind streams, without saying so, and every next request would be lost."""
ADDRESSES_S = 10.0
"""How long the addresses of a name are kept."""
NEXT_ADDRESS_S = 0.25
"""After so long without a connection the next address of a name is tried beside it (RFC 8305)."""
TURNS_TO_CLOSE = 10
"""Turns of the event loop that aborted connections may take to be gone."""


class Address:
    """Where `url` is, as far as connections go. Raises ValueError for what is no http or https URL of a host."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(url)
        self.tls = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        name = self.host if self.host.isascii() else self.host.encode("idna").decode()
        self.name = f"[{name}]" if ":" in name else name
        self.default_port = self.port == (443 if self.tls else 80)
        user, self.password = unquote(parts.username or ""), unquote(parts.password or "")
        self.basic = b64encode(f"{user}:{self.password}".encode()).decode() if user or self.password else ""

    @property
    def authority(self) -> str:
        """What stands in the header Host."""
        return self.name if self.default_port else f"{self.name}:{self.port}"


class CannotConnect(Exception):
    """No connection to `address` could be made. `may_pass`: another attempt may succeed. `refused`: nobody may be
    listening there."""

    def __init__(self, address: Address, why: Exception, *, may_pass: bool = True) -> None:
        said = getattr(why, "strerror", None) or str(why) or type(why).__name__
        super().__init__(f"cannot connect to {authority(address.host, address.port)}: {said}")
        self.address = address
        self.may_pass = may_pass and not isinstance(why, UnicodeError | ssl.SSLCertVerificationError)
        self.refused = self.may_pass and isinstance(why, OSError) and not isinstance(why, ssl.SSLError)


class Pool:
    """Connections to `url`, or through `proxy`. Making one takes `connect_timeout_s` at most, from the look-up of its
    name to TLS.

    A proxy gets whole URLs for http and a CONNECT for https. Raises PlanError when `url` is none of a host, when
    `proxy` is none (without its address), and for a `ca_bundle` that cannot be used.
    """

    def __init__(self, url: str, *, proxy: str | None, ca_bundle: str | None, connect_timeout_s: float) -> None:
        try:
            self.target = Address(url)
        except ValueError:
            raise PlanError(f"base_url: {url} is not the address of a host") from None
        self.proxy = _proxy(proxy) if proxy is not None else None
        self._connect_timeout_s = connect_timeout_s
        tls = self.target.tls or ca_bundle is not None or (self.proxy is not None and self.proxy.tls)
        self._ssl = _ssl_context(ca_bundle) if tls else None
        self._addresses: Sequence[aiohappyeyeballs.AddrInfoType]
        self._resolved_at, self._turn = 0.0, 0
        self._lookup: asyncio.Task[None] | None = None
        self._closed, self._hasty = False, 0
        self._idle: dict[Line, None] = {}
        self._opened = 0
        self.lines: set[Line] = set()
        self.steps: Steps

    @property
    def first(self) -> Address:
        """The address that connections are made to: the target, or the proxy before it."""
        return self.proxy or self.target

    def head(self, method: str, path: str, headers: dict[str, str]) -> bytes:
        """The beginning of a request for a path of the target."""
        target, absolute = self.target, self.proxy is not None and not self.target.tls
        place = on_the_wire(path)
        if absolute:
            place = f"http://{target.authority}{place}"
        own = {} if "host" in map(str.lower, headers) else {"Host": target.authority}
        lines = {**own, **headers}
        if absolute and self.proxy is not None:
            lines.update(_credentials(self.proxy))
        return "".join(
            [f"{method} {place} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in lines.items())]
        ).encode("latin-1")

    def idle(self) -> Line | None:
        """The connection that was used last of those that are free and good, if there is one."""
        if not self.steps.keeps:
            self._retire_all()
            return None
        while self._idle:
            line, _ = self._idle.popitem()
            if time.monotonic() - line.used_at > KEEPALIVE_S:
                self.retire(line)
                self._retire_all()
            elif line.usable:
                return line
        return None

    def was_stale(self, line: Line, now: float) -> None:
        """Notes that a connection which had been used before was closed without a word to the next request."""
        self._hasty += now - line.used_at < HASTY_S

    def keep(self, line: Line, now: float, *, used: bool = False) -> None:
        """Takes back a connection whose reply was had whole, unless the server closes such behind its answers without
        saying so. `used`: the reply was not the first on it."""
        line.turns += 1
        if used:
            self._hasty = 0
        steps = self.steps
        if line.usable and steps.keeps and not self._closed and self._hasty < HASTY:
            line.rest(now)
            if steps.most and steps.due(line):
                self.retire(line)
            elif line.turns >= line.due_at:
                steps.check(line, self._free)
            else:
                self._idle[line] = None
            return
        if line.closing:
            steps.closed(line)
        self.retire(line)

    def retire(self, line: Line, unwanted: Reply | None = None) -> None:
        """Gives a connection up, after a last check where its answers need one. What is still to come of an `unwanted`
        reply is waited for."""
        if line.usable and line.unproven and not self._closed and self.steps.listener is not None:
            if unwanted is None:
                line.rest(time.monotonic())
            else:
                unwanted.discard(asyncio.get_running_loop().create_future())
            self.steps.check(line, Line.abort, unwanted)
        else:
            line.abort()

    async def settle(self) -> None:
        """Checks what is idle, and waits for all checks; connections in use stay unproven."""
        self._check_idle(0.0)
        await self.steps.settle()

    async def watch(self) -> None:
        """Run until cancelled. Checks connections that have become idle, before the server closes them."""
        while True:
            await asyncio.sleep(IDLE_S)
            self._check_idle(IDLE_S)

    def _check_idle(self, idle_s: float) -> None:
        now = time.monotonic()
        for line in [line for line in self._idle if line.unproven and now - line.used_at >= idle_s]:
            del self._idle[line]
            self.steps.check(line, self._free)

    def _free(self, line: Line) -> None:
        """A connection was checked and can be used again."""
        if self.steps.keeps and not self._closed:
            line.used_at = time.monotonic()
            self._idle[line] = None
        else:
            line.abort()

    def _retire_all(self) -> None:
        while self._idle:
            self.retire(self._idle.popitem()[0])

    async def open(self) -> Line:
        """A new connection. Raises CannotConnect, TimeoutError, and what Tunnel.ask does."""
        first = self.first
        if self._closed:
            raise CannotConnect(first, ConnectionAbortedError("the client was closed"), may_pass=False)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._connect(first)
        except TimeoutError:
            self._resolved_at = 0.0
            raise
        except (OSError, UnicodeError, RuntimeError) as error:  # uvloop raises the last for some sockets
            self._resolved_at = 0.0
            raise CannotConnect(first, error) from error

    async def close(self) -> None:
        """Ends all connections; what waits for one of them ends, and no new one is made."""
        self._closed = True
        self.steps.close()
        for line in tuple(self.lines):
            line.abort()
        for _ in range(TURNS_TO_CLOSE):
            if self.lines:
                await asyncio.sleep(0)

    async def _connect(self, first: Address) -> Line:
        loop = asyncio.get_running_loop()
        addresses = await self._resolve(first)
        sock = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=loop
        )
        tls, name, patience = (self._ssl, first.host, self._connect_timeout_s) if first.tls else (None, None, None)
        if self.proxy is None or not self.target.tls:
            line = self._line()
            try:
                await loop.create_connection(
                    lambda: line, sock=sock, ssl=tls, server_hostname=name, ssl_handshake_timeout=patience
                )
            except BaseException:
                line.abort()
                self.lines.discard(line)  # uvloop tells a protocol nothing of a transport whose making was cancelled
                raise
            return line
        _, tunnel = await loop.create_connection(
            Tunnel, sock=sock, ssl=tls, server_hostname=name, ssl_handshake_timeout=patience
        )
        target, line = self.target, self._line()
        transport = await tunnel.ask(f"{target.name}:{target.port}", _credentials(self.proxy))
        assert self._ssl is not None
        try:
            inner = await loop.start_tls(
                transport,
                line,
                self._ssl,
                server_hostname=target.host,
                ssl_handshake_timeout=self._connect_timeout_s,
            )
        except ssl.SSLError as error:
            transport.abort()
            raise CannotConnect(target, error) from error
        except BaseException:
            transport.abort()
            raise
        if inner is None:
            raise OSError("the connection ended")
        line.connection_made(inner)
        return line

    def _line(self) -> Line:
        self._opened += 1
        return Line(self.lines, self._idle, self._opened, self.steps.stray)

    async def _resolve(self, address: Address) -> Sequence[aiohappyeyeballs.AddrInfoType]:
        """The addresses of a name, each connection's beginning with another; one look-up serves all who wait."""
        if not self._resolved_at or time.monotonic() - self._resolved_at > ADDRESSES_S:
            if self._lookup is None:
                self._lookup = asyncio.create_task(self._look_up(address))
                self._lookup.add_done_callback(_retrieve)
            await asyncio.shield(self._lookup)
        self._turn += 1
        first = self._turn % len(self._addresses)
        return [*self._addresses[first:], *self._addresses[:first]]

    async def _look_up(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._addresses = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            self._resolved_at = time.monotonic()
        finally:
            self._lookup = None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Takes note of an error for which nobody waits any more."""
    if not task.cancelled():
        task.exception()


def _credentials(proxy: Address) -> dict[str, str]:
    return {"Proxy-Authorization": f"Basic {proxy.basic}"} if proxy.basic else {}


def _proxy(url: str) -> Address:
    try:
        return Address(url)
    except ValueError:
        raise PlanError("proxy: expected http://host:port or https://host:port") from None


def _ssl_context(ca_bundle: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except (OSError, ssl.SSLError) as error:
        raise PlanError(f"ca_bundle: {ca_bundle} cannot be used: {error}") from error
