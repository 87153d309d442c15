"""Carry requests over connections of aiohttp: the second transport.

It shows that the client needs only the transport interface. aiohttp does not expose its
connections, so most of what `http1` proves is impossible here; docs/requests.md has the table. Each
request runs in its own task, which fills the reply.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from serve_eval.errors import PlanError, install_hint

try:
    import aiohttp
    from yarl import URL
except ModuleNotFoundError as error:
    raise PlanError("the aiohttp transport needs aiohttp", hint=install_hint("servers")) from error

from serve_eval.client.aiohttp_transport.channel import AiohttpChannel, SharedConnection
from serve_eval.client.aiohttp_transport.errors import broken, not_sent
from serve_eval.client.channel import Channel
from serve_eval.client.server_address import ServerAddress, endpoint_address, proxy_address
from serve_eval.client.step_ledger import StepLedger
from serve_eval.client.tls import ssl_context
from serve_eval.client.transport import (
    REQUEST_ID,
    CannotConnect,
    Disconnected,
    RequestHead,
    TransportSettings,
)
from serve_eval.client.wire_format.answering_servers import SERVER_FIELDS
from serve_eval.client.wire_format.reply import HEAD_FIELDS, Reply
from serve_eval.schema.base_url import on_the_wire

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

KEEPALIVE_S, ADDRESSES_S = 3.0, 10
"""As in `http1`: seconds that a connection may be idle, and for which addresses are cached."""
MAX_HEAD = 98304
"""Maximum size in bytes of one header field, and of all fields together as aiohttp counts them."""

LARGE_BODY = 2**20
"""Size of a body in bytes from which aiohttp warns and wants a file instead of one piece."""


class _Connector(aiohttp.TCPConnector):
    """Reports which connection a request got."""

    connected: Callable[[ResponseHandler], None]

    async def connect(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if connection.protocol is not None:
            self.connected(connection.protocol)
        return connection


class AiohttpTransport:
    """Two sessions of aiohttp: one reuses connections, the other opens one for each request.

    Raises PlanError.
    """

    def __init__(self, settings: TransportSettings) -> None:
        self._target, self.proxy = (
            endpoint_address(settings.base_url),
            proxy_address(settings.proxy),
        )
        self._settings = settings
        self._tls = ssl_context(self._target, self.proxy, settings.certificates)
        scheme = "https" if self._target.tls else "http"
        self._root = f"{scheme}://{self._target.authority}"
        self._way = None
        if self.proxy is not None:
            self._way = URL(
                f"{'https' if self.proxy.tls else 'http'}://{self.proxy.name}:{self.proxy.port}"
            )
        self._prepared: dict[RequestHead, URL] = {}
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        self._under_way: dict[asyncio.Task[None], asyncio.Future[AiohttpChannel]] = {}
        self._replies: dict[asyncio.Task[None], Reply] = {}
        self._known: WeakKeyDictionary[ResponseHandler, SharedConnection] = WeakKeyDictionary()
        self._opened, self._closed = 0, False
        self.ledger = StepLedger()

    @property
    def address(self) -> ServerAddress:
        return self.proxy or self._target

    def prepare(self, head: RequestHead) -> None:
        self._prepared[head] = self._url(head)

    async def send(
        self,
        head: RequestHead,
        body: bytes | None,
        reply: Reply,
        *,
        request_id: str | None = None,
        fresh: bool = False,
    ) -> AiohttpChannel:
        if self._closed:
            raise CannotConnect(
                self.address, ConnectionAbortedError("the client was closed"), may_pass=False
            )
        loop = asyncio.get_running_loop()
        task = loop.create_task(
            self._carry(head, body, reply, request_id, keep=self.ledger.keeps and not fresh)
        )
        connected: asyncio.Future[AiohttpChannel] = loop.create_future()
        self._under_way[task], self._replies[task] = connected, reply
        task.add_done_callback(self._forget)
        try:
            channel = await connected
        except asyncio.CancelledError:
            task.cancel()
            raise
        reply.expect(time.monotonic())
        return channel

    async def _carry(
        self,
        head: RequestHead,
        body: bytes | None,
        reply: Reply,
        request_id: str | None,
        *,
        keep: bool,
    ) -> None:
        """Send a request and fill its reply."""
        headers = dict(head.headers)
        if request_id is not None:
            headers[REQUEST_ID] = request_id
        credentials = {} if self.proxy is None else self.proxy.credentials
        if not self._target.tls:
            headers.update(credentials)
        task = asyncio.current_task()
        assert task is not None
        connected = self._under_way[task]
        try:
            async with self._session(keep).request(
                head.method,
                self._prepared.get(head) or self._url(head),
                data=io.BytesIO(body) if body is not None and len(body) >= LARGE_BODY else body,
                headers=headers,
                allow_redirects=False,
                proxy=self._way,
                proxy_headers=credentials if self._target.tls and credentials else None,
            ) as response:
                await _fill(reply, response)
        except Exception as error:
            if not connected.done():
                connected.set_exception(
                    not_sent(error, self.address, through_proxy=self.proxy is not None)
                )
            elif reply.stream is not None and reply.stream.complete:
                reply.settle()
            else:
                reply.fail(broken(error, within=bool(reply.status)))

    def _note_connected(self, protocol: ResponseHandler) -> None:
        """Record the connection of the current task's request."""
        shared = self._known.get(protocol)
        if shared is None:
            self._opened += 1
            shared = self._known[protocol] = SharedConnection(self._opened)
        task = asyncio.current_task()
        assert task is not None
        connected = self._under_way[task]
        if not connected.done():
            connected.set_result(AiohttpChannel(shared, protocol, task))

    def _session(self, keep: bool) -> aiohttp.ClientSession:
        session = self._sessions.get(keep)
        if session is None:
            connector = _Connector(
                limit=0,
                ssl=self._tls if self._tls is not None else True,
                ttl_dns_cache=ADDRESSES_S,
                **({"keepalive_timeout": KEEPALIVE_S} if keep else {"force_close": True}),
            )
            connector.connected = self._note_connected
            session = self._sessions[keep] = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, connect=self._settings.connect_timeout_s),
                auto_decompress=False,
                max_line_size=MAX_HEAD,
                max_field_size=MAX_HEAD,
            )
        return session

    def _url(self, head: RequestHead) -> URL:
        return URL(self._root + on_the_wire(head.path), encoded=True)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        self._replies.pop(task, None)
        if not task.cancelled():
            task.exception()

    # After every request

    def keep(self, channel: Channel, now: float) -> None:
        """Do nothing: aiohttp took the connection back when the answer ended."""

    def give_up(self, channel: Channel, reply: Reply, *, unwanted: bool = False) -> None:
        self.abort(channel)

    def abort(self, channel: Channel) -> None:
        assert isinstance(channel, AiohttpChannel)
        channel.end()

    def note_end(self, channel: Channel, now: float) -> None:
        """Do nothing: aiohttp does not report when a connection was last used."""

    def list_open(self) -> frozenset[int]:
        """Return no connection, because none can be checked."""
        return frozenset()

    async def watch(self) -> None:
        await asyncio.Event().wait()

    async def settle(self) -> None:
        """Do nothing: a request cannot choose its connection, so none can be checked."""

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._replies)
        for task, reply in list(self._replies.items()):
            reply.fail(Disconnected("the client was closed"))
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for session in self._sessions.values():
            await session.close()


async def _fill(reply: Reply, response: aiohttp.ClientResponse) -> None:
    """Fill a reply with a response as it arrives."""
    reply.read_at = time.monotonic()
    reply.received += sum(len(name) + len(value) + 4 for name, value in response.raw_headers)
    head: dict[bytes, str] = {}
    for name, value in ((name.lower(), value) for name, value in response.raw_headers):
        if name in HEAD_FIELDS:
            repeated = name in SERVER_FIELDS and name in head
            head[name] = "" if repeated else value.decode("latin-1")
    reply.begin(response.status, head)
    async for piece in response.content.iter_any():
        reply.read_at = time.monotonic()
        reply.received += len(piece)
        reply.take(piece)
        if reply.ended.done():
            return
        reply.hurry()
    reply.finish()
