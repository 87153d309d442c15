"""Define the interface of transports, which carry requests to the endpoint.

A transport receives a head, an id and a body, and fills a `Reply` as the answer arrives. `http1`
does so; the rest of the client needs no more of it than this interface.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from serve_eval.client.step_ledger import Channel
from serve_eval.client.tls import Certificates, ServerAddress, refusal
from serve_eval.schema.base_url import authority

if TYPE_CHECKING:
    from serve_eval.client.step_ledger import RequestIds, StepLedger
    from serve_eval.client.wire_format.reply import Reply

REQUEST_ID = "X-Request-ID"


class Disconnected(Exception):
    """The connection could not be made, or ended before the answer did."""


class CertificateRefused(Disconnected):
    """The server ended the connection because of our certificate: another attempt is in vain."""


class BadHttp(Exception):
    """The bytes received are not an HTTP answer."""


class CannotConnect(Exception):
    """No connection to `address` could be made.

    `may_pass`: another attempt may succeed. `refused`: possibly no server listens there.
    """

    def __init__(self, address: ServerAddress, why: Exception, *, may_pass: bool = True) -> None:
        said = getattr(why, "strerror", None) or str(why) or type(why).__name__
        if isinstance(why, ConnectionRefusedError):
            said = "nothing listens on that port"
        elif told := refusal(why):
            said, may_pass = told, False
        elif isinstance(why, ssl.SSLError) and "WRONG_VERSION_NUMBER" in said:
            said = "its answer is not TLS"
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
        super().__init__(f"HTTP {status} from the proxy")
        self.status = status


class TransportSettings(NamedTuple):
    """The settings of a transport.

    `headers` go with every request. A GET of `models_path` returns a list of models and never a
    completion.
    """

    base_url: str
    models_path: str
    headers: Mapping[str, str]
    ids: RequestIds
    proxy: str | None
    certificates: Certificates
    connect_timeout_s: float
    max_response_bytes: int


class RequestHead:
    """The part of a request that many requests share.

    Compared by identity, so that a transport can cache what it derives from it.
    """

    __slots__ = ("headers", "method", "path")

    def __init__(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        self.method, self.path, self.headers = method, path, headers


class Transport(Protocol):
    """Carries requests to one endpoint. A request calls `send` or `send_on_idle` alone."""

    ledger: StepLedger

    @property
    def address(self) -> ServerAddress:
        """The address that connections are made to: the endpoint's, or the proxy's."""

    @property
    def proxy(self) -> ServerAddress | None: ...

    def prepare(self, head: RequestHead) -> None:
        """Do the work that all requests with this head share."""

    def send_on_idle(
        self, head: RequestHead, body: bytes | None, reply: Reply, request_id: str
    ) -> Channel | None:
        """Send a request as `send` does, or return None if no idle connection is usable."""

    def send(
        self,
        head: RequestHead,
        body: bytes | None,
        reply: Reply,
        *,
        request_id: str | None = None,
        fresh: bool = False,
    ) -> Awaitable[Channel]:
        """Send a request and fill `reply` with what comes back.

        `fresh`: on a new connection. Raises CannotConnect, TimeoutError, ProxyRefused, BadHttp or
        Disconnected if nothing was sent.
        """

    def keep(self, channel: Channel, now: float) -> None:
        """Take back the connection of an answer that counts."""

    def give_up(self, channel: Channel, reply: Reply, *, unwanted: bool = False) -> None:
        """Take back the connection of a reply that does not count.

        `unwanted`: the task that sent the request was cancelled.
        """

    def abort(self, channel: Channel) -> None:
        """End a connection immediately."""

    def note_end(self, channel: Channel, now: float) -> None:
        """Note that a used connection was closed without any reply to the next request."""

    def list_open(self) -> frozenset[int]:
        """Return the numbers of the open connections, which can still be checked."""

    async def watch(self) -> None:
        """Check idle connections until cancelled."""

    async def settle(self) -> None:
        """Check all unused connections, which takes a few seconds at most."""

    async def close(self) -> None:
        """End all connections and make no new one. Requests that wait for a connection fail."""
