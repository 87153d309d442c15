"""Define transports, which carry requests, and record which answers surely belong to them.

A transport receives a head, an id and a body, and fills a `Reply` as the answer arrives. `http1`
does so; the rest of the client needs no more of it than this interface.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from serve_eval.client.tls import Certificates, ServerAddress, refusal
from serve_eval.schema.base_url import authority

if TYPE_CHECKING:
    from serve_eval.client.request import RequestIds
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


class Channel(Protocol):
    """One connection, as the client and the step ledger see it.

    It delivered `turns` whole answers. The first `proven` of them certainly belong to their
    requests. `sent` counts the requests sent on it. `out`: the connection is out of step. `usable`:
    it may take another request. `ends_unproven`: it was reported that some of its answers stay
    unproven. `last_id` and `last_text` describe its last answer (see `Echoes`). `round_trip_s` is
    the time that opening it took, at least a round trip (0: not known).
    """

    number: int
    turns: int
    proven: int
    sent: int
    out: bool
    usable: bool
    ends_unproven: bool
    last_id: str | None
    last_text: int
    round_trip_s: float


MOST_OUT = 2
"""From this number of connections out of step, each request gets a connection of its own."""
MOST_ENDS = 3
"""The same for connections that their server ended without notice and before a proof."""

OUT_OF_STEP = "connections get out of step"
NO_NOTICE = "the server ends connections without notice"


class StepListener(Protocol):
    """Receives proofs and strays, and can take answers back.

    `proven` gives the number of a connection's turns that were proven in step. `out_of_step` names
    a connection that is out of step: all its answers after the proven ones, except the first, may
    belong to other requests. `lose_answers` names a connection that ended, so that nothing will
    prove these answers any more (`silent`: its server ended it without notice). With
    `trust_answers` they stay unproven too, up to this number of turns, but need not be asked again.
    """

    def proven(self, connection: int, turns: int) -> None: ...

    def out_of_step(self, connection: int, why: str) -> None: ...

    def lose_answers(self, connection: int, why: str, *, silent: bool) -> None: ...

    def trust_answers(self, connection: int, turns: int) -> None: ...


class StepLedger:
    """Records proofs, strays and ends.

    `keeps` says whether connections serve several requests. It is false without a `listener`, which
    alone can take answers back, and in `alone` mode. Each request then has a connection of its own,
    whose first reply always belongs to it; `why_alone` is the reason. `out` counts the connections
    that were out of step, `ends` those that ended without notice and before a proof. `shown`: a
    proof named its request or listed the models; `in_vain` counts the checks that did not.
    """

    def __init__(self) -> None:
        self.listener: StepListener | None = None
        self.alone = self.keeps = self.shown = False
        self.why_alone = ""
        self.out = self.ends = self.in_vain = 0

    @property
    def unprovable(self) -> bool:
        """True if checks were answered, but never with anything that proves something."""
        return self.in_vain > 0 and not self.shown

    def listen(self, listener: StepListener | None) -> None:
        """Set the listener that can take answers back."""
        self.listener = listener
        self.keeps = listener is not None and not self.alone

    def go_alone(self, why: str) -> None:
        """Give each request a connection of its own from now on."""
        self.why_alone = self.why_alone or why
        self.alone, self.keeps = True, False

    def prove(self, channel: Channel, turns: int) -> None:
        """Note that the first `turns` replies of a connection were in step."""
        channel.proven = turns
        if turns > 1 and self.listener is not None:
            self.listener.proven(channel.number, turns)

    def prove_next(self, channel: Channel) -> None:
        """Note that the reply to the current request named it."""
        self.shown = True
        if channel.turns > 1 and channel.turns > channel.proven:
            self.prove(channel, channel.turns)
        channel.proven = channel.turns + 1

    def stray(self, channel: Channel, why: str) -> None:
        """Note that a connection is out of step."""
        if channel.out:
            return
        channel.out, channel.usable = True, False
        if self.listener is None or (self.alone and channel.sent == 1):
            # It has no second answer, and is detected again, or known, if it gets one.
            return
        self.out += 1
        if self.out >= MOST_OUT:
            self.go_alone(OUT_OF_STEP)
        if self.listener is not None:
            self.listener.out_of_step(channel.number, why)

    def lose(self, channel: Channel, why: str, *, silent: bool) -> None:
        """Note that a connection ended with answers that no proof covers."""
        if self._settle(channel) and self.listener is not None:
            self.ends += silent
            if self.ends >= MOST_ENDS:
                self.go_alone(NO_NOTICE)
            self.listener.lose_answers(channel.number, why, silent=silent)

    def trust(self, channel: Channel) -> None:
        """Note that a connection ended, and that its unproven answers stand."""
        if self._settle(channel) and self.listener is not None:
            self.listener.trust_answers(channel.number, channel.turns)

    def _settle(self, channel: Channel) -> bool:
        """Return True for the first report that answers of a connection stay unproven."""
        first = not channel.ends_unproven and not channel.out
        channel.ends_unproven = True
        return first
