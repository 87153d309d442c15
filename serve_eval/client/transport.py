"""The seam below the client: who carries a request to the endpoint, and the nouns that pass
through.

A transport gets a head, an id and a body, and fills a `Reply` as the answer arrives. Two exist:
`http1`, the default, and `aiohttp_transport`. docs/requests.md has a table of what the second
cannot do.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from serve_eval.client.channel import Channel
from serve_eval.client.server_address import ServerAddress
from serve_eval.schema.base_url import authority

if TYPE_CHECKING:
    from serve_eval.client.request_ids import RequestIds
    from serve_eval.client.step_ledger import StepLedger
    from serve_eval.client.wire_format.reply import Reply

REQUEST_ID = "X-Request-ID"


class Disconnected(Exception):
    """The connection could not be made, or ended before the answer did."""


class BadHttp(Exception):
    """Bytes came that are no HTTP answer."""


class CannotConnect(Exception):
    """No connection to `address` could be made. `may_pass`: another attempt may succeed. `refused`:
    nobody may be listening there.
    """

    def __init__(self, address: ServerAddress, why: Exception, *, may_pass: bool = True) -> None:
        said = getattr(why, "strerror", None) or str(why) or type(why).__name__
        super().__init__(f"cannot connect to {authority(address.host, address.port)}: {said}")
        self.address = address
        self.may_pass = may_pass and not isinstance(
            why, UnicodeError | ssl.SSLCertVerificationError
        )
        self.refused = (
            self.may_pass and isinstance(why, OSError) and not isinstance(why, ssl.SSLError)
        )


class ProxyRefused(Exception):
    """The proxy answered CONNECT with `status`."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status} of the proxy")
        self.status = status


class TransportSettings(NamedTuple):
    """All that a transport knows of its endpoint and its session.

    `headers` go with every request. `models_path` answers a GET with a list of models and never
    with a completion.
    """

    base_url: str
    models_path: str
    headers: Mapping[str, str]
    ids: RequestIds
    proxy: str | None
    ca_bundle: str | None
    connect_timeout_s: float
    max_response_bytes: int


class RequestHead:
    """The part of a request that many share. Equal by identity, so that a transport may keep what
    it made of it.
    """

    __slots__ = ("headers", "method", "path")

    def __init__(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        self.method, self.path, self.headers = method, path, headers


class Transport(Protocol):
    """Carries requests to one endpoint. Of its methods `send` alone is on the way of every
    request.
    """

    ledger: StepLedger

    @property
    def address(self) -> ServerAddress:
        """The address that connections are made to: the endpoint, or the proxy before it."""

    @property
    def proxy(self) -> ServerAddress | None: ...

    def prepare(self, head: RequestHead) -> None:
        """Do now what can be done once for all requests with this head."""

    def send(
        self,
        head: RequestHead,
        body: bytes | None,
        reply: Reply,
        *,
        request_id: str | None = None,
        fresh: bool = False,
    ) -> Awaitable[Channel]:
        """Send a request; what comes back fills `reply`. `fresh`: on a connection that nobody used
        before.

        Raises CannotConnect, TimeoutError, ProxyRefused, BadHttp or Disconnected when nothing was
        sent.
        """

    def keep(self, channel: Channel, now: float) -> None:
        """Take back the connection of an answer that counts."""

    def give_up(self, channel: Channel, reply: Reply, *, unwanted: bool = False) -> None:
        """Take back the connection of a reply that does not count. `unwanted`: its sender was
        cancelled.
        """

    def abort(self, channel: Channel) -> None:
        """End a connection at once."""

    def note_end(self, channel: Channel, now: float) -> None:
        """Note that a used connection was closed without a word to the next request."""

    def list_open(self) -> frozenset[int]:
        """Return the numbers of the open connections, which may still be checked."""

    async def watch(self) -> None:
        """Run until cancelled. Check connections that have become idle."""

    async def settle(self) -> None:
        """Check all connections that nobody uses, in a few seconds at most."""

    async def close(self) -> None:
        """End all connections; senders that wait for one get an error, and no new one is made."""


TransportFactory = Callable[[TransportSettings], Transport]
