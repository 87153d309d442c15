"""Read the counters of a deployment's engines at both ends of a session.

A comparison asks its endpoints some prompts again, by runs of their own. Servers count the requests
of all runs, which would otherwise look like those of other clients.

The servers of a deployment are read at their own addresses, without the key and the proxy, which
are for the endpoint. A server that does not say what it is is not asked. The differences are
recorded and shown; a missing counter never fails a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from serve_eval.client import engine_metrics
from serve_eval.client.client import Client
from serve_eval.client.engine_metrics import SGLANG_ROUTE, TRTLLM_ROUTE, VLLM_ROUTE, EngineReading
from serve_eval.client.questions import SGLANG, VLLM
from serve_eval.errors import ServeEvalError
from serve_eval.evidence.path_facts import list_servers
from serve_eval.schema import Endpoint, EngineReport, Limits, SamplingDefaults, ServerCounts
from serve_eval.schema.base_url import normalise_base_url


class Companions:
    """The clients of all runs that one command has, and what was found of their endpoints."""

    def __init__(self) -> None:
        self._clients: list[Client] = []
        self._defaults: dict[tuple[str | None, ...], asyncio.Task[SamplingDefaults]] = {}

    async def share_defaults(
        self, client: Client, probe: Callable[[], Awaitable[SamplingDefaults]], *, chat: bool
    ) -> SamplingDefaults:
        """Return the sampling defaults of a client's endpoint, which one of its runs probes.

        Routes of one server can have others.
        """
        route = client.chat_route if chat else None
        key = client.endpoint.base_url, client.endpoint.model, route
        if key not in self._defaults:
            self._defaults[key] = asyncio.ensure_future(_run(probe))
        return await asyncio.shield(self._defaults[key])

    def join(self, client: Client) -> None:
        """Add the client of a run. It stays after the end of the run."""
        self._clients.append(client)

    def count_sent(self, client: Client) -> int:
        """Return the requests that the others have sent so far to this client's endpoint."""
        return sum(one.sent for one in self._others(client))

    def count_counted(self, client: Client) -> int:
        """Return those of them that the engine has surely counted.

        Those in flight come later, and so may as many of those before: an engine counts a request
        shortly after its answer.
        """
        return sum(max(0, one.sent - 2 * one.attempts.in_flight) for one in self._others(client))

    def _others(self, client: Client) -> Iterator[Client]:
        url = client.endpoint.base_url
        for one in self._clients:
            if one is not client and one.endpoint.base_url == url:
                yield one


async def _run(probe: Callable[[], Awaitable[SamplingDefaults]]) -> SamplingDefaults:
    return await probe()


TIMEOUT_S = 5.0
ROUTES: Mapping[object, str] = {VLLM: VLLM_ROUTE, SGLANG: SGLANG_ROUTE}
"""The routes of the counters by the kind of server; others may have trtllm-serve's."""
SLACK, SLACK_SHARE = 3, 0.01
"""Requests, and share of them, by which a server's count may differ from ours: it counts a request
shortly after its answer, and the search for hung servers sends some."""
RESTARTED = "it restarted, or another server answered, during the session"
UNREAD = "they could not be read at the end of the session"
MANY = (
    "several front ends share its address, each with counters of its own (num_serve_frontends: 1"
    " keeps one)"
)
READS = 12
"""Readings from which several front ends show. The kernel deals connections to them at random: of
two whose counts differ, this many readings miss it in 13 of 2 ** 12 cases, of more in fewer."""


class MeteredServer(NamedTuple):
    """A server whose engine counts: its name, its address, its role and the route of its counters.

    `before` is the reading at the start of the session. `many`: its launcher gave it several front
    ends.
    """

    name: str
    url: str
    role: str | None
    route: str
    before: EngineReading
    many: bool = False


class SessionMeter(NamedTuple):
    """The servers that count, and the requests and answers that we had before their readings.

    `companions` are those requests of companions that the readings surely have.
    """

    servers: tuple[MeteredServer, ...]
    sent: int
    answered: int
    companions: int


async def begin(
    endpoint: Endpoint, client: Client, answered: int, companions: Companions
) -> SessionMeter | None:
    """Read the counters at the start of a session. None if no server of the endpoint has any."""
    # Before the readings: an engine counts later what is sent, or under way, while it is read.
    sent, others = client.sent, companions.count_counted(client)
    found = await asyncio.gather(
        *(_meter(name, url, role, endpoint, client) for name, url, role in list_servers(endpoint))
    )
    servers = tuple(one for one in found if one is not None)
    if not servers:
        return None
    return SessionMeter(servers, sent, answered, others)


async def end(
    meter: SessionMeter,
    endpoint: Endpoint,
    client: Client,
    answered: int,
    companions: Companions,
) -> EngineReport:
    """Return what each server counted since the start of the session."""
    counts = await asyncio.gather(*(_count(one, endpoint, client) for one in meter.servers))
    return EngineReport(
        servers=tuple(counts),
        sent=client.sent - meter.sent,
        answered=max(0, answered - meter.answered),
        companions=companions.count_sent(client) - meter.companions,
    )


async def _meter(
    name: str, url: str, role: str | None, endpoint: Endpoint, client: Client
) -> MeteredServer | None:
    async def read(asked: Client) -> MeteredServer | None:
        told = (
            {"server": endpoint.info.server, "version": endpoint.info.version}
            if asked is client
            else await asked.describe()
        )
        if told.get("server") in ROUTES:
            route = ROUTES[told["server"]]
        elif told.get("version") is not None:
            route = TRTLLM_ROUTE
        else:
            return None
        before = await asked.read_engine(route)
        if before is None:
            return None
        return MeteredServer(name, url, role, route, before, _has_front_ends(endpoint, address))

    try:
        if (address := normalise_base_url(url)) == endpoint.base_url:
            return await read(client)
        async with _open(address, endpoint) as other:
            return await read(other)
    except (ServeEvalError, OSError, ValueError):  # ValueError: an invalid address.
        return None


async def _count(one: MeteredServer, endpoint: Endpoint, client: Client) -> ServerCounts:
    if one.many:
        return ServerCounts(server=one.name, url=one.url, role=one.role, lost=MANY)
    try:
        if (address := normalise_base_url(one.url)) == endpoint.base_url:
            after = await _read_last(client, one.route)
        else:
            async with _open(address, endpoint) as other:
                after = await _read_last(other, one.route)
    except (ServeEvalError, OSError, ValueError):
        after = None
    if isinstance(after, str):
        return ServerCounts(server=one.name, url=one.url, role=one.role, lost=after)
    counts = None if after is None else engine_metrics.subtract(one.before, after)
    lost = None if counts is not None else UNREAD if after is None else RESTARTED
    return ServerCounts(server=one.name, url=one.url, role=one.role, counts=counts, lost=lost)


async def _read_last(client: Client, route: str) -> EngineReading | str | None:
    """Return the last of some readings, or MANY if they cannot be those of one process.

    vLLM and SGLang add the counts of their front ends up themselves, so that they are read once.
    """
    last = await client.read_engine(route)
    for _ in range(READS - 1 if route == TRTLLM_ROUTE else 0):
        before, last = last, await client.read_engine(route)
        if before is None or last is None:
            return None
        if engine_metrics.subtract(before, last) is None:
            return MANY
    return last


def _has_front_ends(endpoint: Endpoint, address: str) -> bool:
    """Return True if the launcher gave the server at this address several front ends."""
    servers = endpoint.info.servers or {}
    return any(
        count > 1 and name in servers and normalise_base_url(servers[name]) == address
        for name, count in (endpoint.info.front_ends or {}).items()
    )


def _open(address: str, endpoint: Endpoint) -> Client:
    return Client(
        replace(endpoint, base_url=address), Limits(connect_timeout_s=TIMEOUT_S, max_attempts=1)
    )


def join(sessions: Sequence[EngineReport | None]) -> EngineReport | None:
    """Return the counts of a run: each server's sum over the sessions in which it was read.

    They are not known if they are not known of one of these sessions. None without any.
    """
    known = [one for one in sessions if one is not None]
    if not known:
        return None
    by_server: dict[str, list[ServerCounts]] = {}
    for session in known:
        for one in session.servers:
            by_server.setdefault(one.server, []).append(one)
    return EngineReport(
        servers=tuple(_join(ones) for ones in by_server.values()),
        sent=sum(one.sent for one in known),
        answered=sum(one.answered for one in known),
        companions=sum(one.companions for one in known),
    )


def _join(ones: Sequence[ServerCounts]) -> ServerCounts:
    lost = next((one.lost for one in ones if one.counts is None), None)
    counts = [one.counts for one in ones if one.counts is not None]
    return msgspec.structs.replace(
        ones[-1], counts=engine_metrics.add(counts) if len(counts) == len(ones) else None, lost=lost
    )


# ------------------------------------------------------------------------------------------------
# Remarks


def remarks(sessions: Sequence[EngineReport | None]) -> list[str]:
    """Return what a reader of the counts should know, and the failures among them."""
    found = join(sessions)
    if found is None:
        return []
    lines = [
        f"what the engine of {one.server} ({one.url}) counted is not known: {one.lost}"
        for one in found.servers
        if one.counts is None
    ]
    if missing := sessions.count(None):
        lines.append(
            f"the engine's counts leave out {missing} of {len(sessions)} sessions: one that was"
            " interrupted, or whose server has no counters, has none"
        )
    return [*lines, *list_transfer_faults(found.servers), *_other_requests(found)]


def list_transfer_faults(servers: Sequence[ServerCounts]) -> list[str]:
    """Return a remark for each server whose KV transfer failed in part."""
    found = []
    for one in servers:
        faults = {} if one.counts is None else one.counts.transfer_faults or {}
        if any(faults.values()):
            each = ", ".join(f"{kind} {count}" for kind, count in faults.items() if count)
            found.append(f"the KV transfer of {one.server} ({one.url}) failed in part: {each}")
    return found


def _other_requests(found: EngineReport) -> list[str]:
    """Return a remark if the servers finished more or fewer requests than were ours."""
    ending = [one.counts for one in found.servers if one.role != "context"]
    counts = [one.requests for one in ending if one is not None and one.requests is not None]
    if not counts or len(counts) < len(ending):
        return []
    finished, sent = sum(counts), found.sent + found.companions
    slack = max(SLACK, SLACK_SHARE * sent)
    if finished > sent + slack:
        who = "the runs of this command" if found.companions else "this run"
        return [
            f"the engine finished {finished} requests, and {who} sent at most"
            f" {sent}: its counts include other clients"
        ]
    if finished < found.answered - slack:
        return [
            f"the engine finished {finished} requests, and this run has {found.answered} answers:"
            " other servers answered too, and its counts leave them out"
        ]
    return []
