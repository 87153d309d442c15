"""Connections to one endpoint: opened when they are needed, kept while they are good, never shared."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Sequence
from urllib.parse import quote, unquote, urlsplit

import aiohappyeyeballs

from serve_eval.client.line import Line
from serve_eval.client.tunnel import Tunnel
from serve_eval.errors import PlanError

KEEPALIVE_S = 3.0
"""Below the 5 s after which trtllm-serve closes an idle connection: a POST on a closing connection is lost."""
ADDRESSES_S = 10.0
"""How long the addresses of a name are kept."""
NEXT_ADDRESS_S = 0.25
"""After so long without a connection the next address of a name is tried beside it (RFC 8305)."""


TURNS_TO_CLOSE = 10
"""Turns of the event loop that aborted connections may take to be gone."""


class CannotConnect(Exception):
    """No connection to `host`:`port` could be made. `may_pass`: another attempt may succeed."""

    def __init__(self, host: str, port: int, why: Exception) -> None:
        said = getattr(why, "strerror", None) or str(why) or type(why).__name__
        super().__init__(f"cannot connect to {host}:{port}: {said}")
        self.host, self.port, self.may_pass = host, port, not isinstance(why, UnicodeError)


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
        self.user, self.password = unquote(parts.username or ""), unquote(parts.password or "")

    @property
    def authority(self) -> str:
        """What stands in the header Host."""
        return self.name if self.default_port else f"{self.name}:{self.port}"


class Pool:
    """Connections to `url`, or through `proxy`. A connection that was made takes `connect_timeout_s` at most.

    A proxy gets whole URLs for http and a CONNECT for https. Raises PlanError, without its address, when `proxy` is
    none, and for a `ca_bundle` that cannot be used.
    """

    def __init__(self, url: str, *, proxy: str | None, ca_bundle: str | None, connect_timeout_s: float) -> None:
        self.target = Address(url)
        self.proxy = _proxy(proxy) if proxy is not None else None
        self._connect_timeout_s = connect_timeout_s
        tls = self.target.tls or ca_bundle is not None or (self.proxy is not None and self.proxy.tls)
        self._ssl = _ssl_context(ca_bundle) if tls else None
        self._addresses: Sequence[aiohappyeyeballs.AddrInfoType] = ()
        self._resolved_at = 0.0
        self._resolving = asyncio.Lock()
        self._idle: dict[Line, None] = {}
        self.lines: set[Line] = set()

    def head(self, method: str, path: str, headers: dict[str, str]) -> bytes:
        """The beginning of a request for a path of the target."""
        target, absolute = self.target, self.proxy is not None and not self.target.tls
        place = quote(path, safe="/%:@!$&'()*+,;=~")
        if absolute:
            place = f"http://{target.authority}{place}"
        lines = {"Host": target.authority, **headers}
        if absolute and self.proxy is not None:
            lines.update(_credentials(self.proxy))
        return "".join(
            [f"{method} {place} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in lines.items())]
        ).encode("latin-1")

    def idle(self) -> Line | None:
        """The connection that was used last of those that are free and good, if there is one."""
        while self._idle:
            line, _ = self._idle.popitem()
            if time.monotonic() - line.used_at > KEEPALIVE_S:
                line.abort()
                for older in self._idle:
                    older.abort()
                self._idle.clear()
            elif line.usable:
                return line
        return None

    def keep(self, line: Line, now: float) -> None:
        """Takes back a connection whose reply was had whole."""
        if line.usable:
            line.rest(now)
            self._idle[line] = None
        else:
            line.abort()

    async def open(self) -> Line:
        """A new connection. Raises CannotConnect, TimeoutError, and what Tunnel.ask does."""
        first = self.proxy or self.target
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._connect(first)
        except TimeoutError:
            self._resolved_at = 0.0
            raise
        except (OSError, UnicodeError) as error:
            self._resolved_at = 0.0
            raise CannotConnect(first.host, first.port, error) from error

    async def close(self) -> None:
        """Ends all connections, and returns when they are gone."""
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
        tls = self._ssl if first.tls else None
        name = first.host if first.tls else None
        if self.proxy is None or not self.target.tls:
            _, line = await loop.create_connection(self._line, sock=sock, ssl=tls, server_hostname=name)
            return line
        _, tunnel = await loop.create_connection(Tunnel, sock=sock, ssl=tls, server_hostname=name)
        target, line = self.target, self._line()
        transport = await tunnel.ask(f"{target.name}:{target.port}", _credentials(self.proxy))
        assert self._ssl is not None
        try:
            inner = await loop.start_tls(transport, line, self._ssl, server_hostname=target.host)
        except BaseException:
            transport.abort()
            raise
        if inner is None:
            raise OSError("the connection ended")
        line.connection_made(inner)
        return line

    def _line(self) -> Line:
        return Line(self.lines, self._idle)

    async def _resolve(self, address: Address) -> Sequence[aiohappyeyeballs.AddrInfoType]:
        async with self._resolving:
            now = time.monotonic()
            if not self._resolved_at or now - self._resolved_at > ADDRESSES_S:
                loop = asyncio.get_running_loop()
                self._addresses = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
                self._resolved_at = now
        return self._addresses


def _credentials(proxy: Address) -> dict[str, str]:
    if not proxy.user and not proxy.password:
        return {}
    told = b64encode(f"{proxy.user}:{proxy.password}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {told}"}


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
