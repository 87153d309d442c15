"""Find the part of a deployment that differs, and prove which servers the probes used.

If each server on its own is sound and the deployment is not, the fault lies between them: in the
transfer of the KV cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import msgspec

from serve_eval.client.client import Client
from serve_eval.errors import EndpointError, PlanError
from serve_eval.evaluation import deployment
from serve_eval.evaluation.probe_server import AskedServer
from serve_eval.evidence import engine_counters
from serve_eval.evidence.engine_counters import Companions, SessionMeter
from serve_eval.evidence.path_facts import ROLES, SERVER, list_servers
from serve_eval.evidence.path_proof import count_moved
from serve_eval.evidence.probe_judging import UNSOUND
from serve_eval.frozen import freeze
from serve_eval.schema import (
    Endpoint,
    Limits,
    Probe,
    ServerCounts,
    Spec,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
)
from serve_eval.schema.base_url import normalise_base_url
from serve_eval.workflows.verify.judged import JudgedServer, judge_together
from serve_eval.workflows.verify.servers import NamedPlan, VerifySession, open_server, settle_server

ROUND = 20
SOUND = (VerificationOutcome.IDENTICAL, VerificationOutcome.OTHER_NUMERICS)
CONNECT_S = 5.0
ALIKE = 0.5
"""Share of the deployment's probes beyond the floor that a server with the same fault has."""


@freeze
class GivenWorker:
    """A server of a deployment that the user named: its role, and the plan that reaches it."""

    role: str
    named: NamedPlan


def parse_worker(text: str, plan: NamedPlan) -> GivenWorker:
    """Return the worker in `context=URL`, `generation=URL` or URL. Raises PlanError."""
    role, sign, url = text.partition("=")
    if not sign:
        role, url = SERVER, text
    if role not in (*ROLES.values(), SERVER):
        raise PlanError(
            f"--worker: {role!r} is not a role",
            hint=f"Roles: {', '.join(ROLES.values())}; or give a URL.",
        )
    address = normalise_base_url(url)
    external = Spec(name="external", options={"base_url": address})
    named = NamedPlan(address, replace(plan.plan, launcher=external))
    return GivenWorker(role=role, named=named)


async def verify_parts(
    whole: JudgedServer,
    known: VerificationReference,
    probes: Sequence[Probe],
    given: Sequence[GivenWorker],
    session: VerifySession,
) -> list[VerifiedSide]:
    """Judge each server of a deployment on its own. None are judged if fewer than two are known.

    Servers that the user did not name get neither the key nor the headers of the endpoint.
    """
    async with AsyncExitStack() as stack:
        opened, complete = (
            await _open_given(whole.server.name, given, known, session, stack)
            if given
            else await _open_known(whole.server, session, stack)
        )
        if len(opened) < 2:
            return []
        family = judge_together([server for _, server in opened], known)
        for judged in family:
            judged.server.salted = whole.server.salted and judged.server.salted
            for begin in range(0, len(probes), ROUND):
                if judged.is_decided(session.rules.probes, session.rules.tokens):
                    break
                asking = judged.ask(probes[begin : begin + ROUND])
                name, part_of = judged.server.name, whole.server.name
                judged.lost = await session.keep(name, asking, part_of=part_of) is None
            judged.end(known.probes)
        sides = [
            judged.result(part_of=whole.server.name, role=role)
            for (role, _), judged in zip(opened, family, strict=True)
        ]
    # Sound servers acquit no deployment of which another server was not asked.
    bad = [one for one in sides if one.outcome in UNSOUND]
    return sides if complete and not any(one.lost for one in family) else bad


Opened = tuple[list[tuple[str, AskedServer]], bool]
"""The servers of a deployment with their roles, and True if all of them could be opened."""


async def _open_given(
    whole: str,
    given: Sequence[GivenWorker],
    known: VerificationReference,
    session: VerifySession,
    stack: AsyncExitStack,
) -> Opened:
    found = []
    for one in given:
        opening = stack.enter_async_context(open_server(one.named, session, route=known.route))
        server = await session.keep(one.named.name, opening, part_of=whole)
        if server is not None:
            found.append((one.role, server))
    return found, len(found) == len(given)


async def _open_known(whole: AskedServer, session: VerifySession, stack: AsyncExitStack) -> Opened:
    """Connect to the servers that the deployment or its launcher names."""
    endpoint = await deployment.learn_deployment(whole.client.endpoint, whole.client)
    found = []
    servers = list_servers(endpoint)
    for name, url, role in servers:
        try:
            address = normalise_base_url(url)
            client = Client(
                replace(endpoint, base_url=address), Limits(connect_timeout_s=CONNECT_S)
            )
            asked = AskedServer(
                name=f"{name} ({address})",
                client=await stack.enter_async_context(client),
                in_flight=whole.in_flight,
            )
            await settle_server(asked, route=whole.route)
        except (PlanError, EndpointError) as error:
            session.lose(name, error, part_of=whole.name)
            continue
        found.append((role or SERVER, asked))
    return found, len(found) == len(servers)


def _differ_alike(whole: VerifiedSide | None, parts: Sequence[VerifiedSide]) -> bool:
    """Return whether each server on its own has at least ALIKE of the deployment's far probes."""
    if whole is None or whole.outcome is not VerificationOutcome.ANOTHER:
        return False
    least = ALIKE * whole.beyond_floor / whole.asked
    return all(
        one.outcome is VerificationOutcome.UNDECIDED and one.beyond_floor >= least * one.asked > 0
        for one in parts
    )


def _name_faults(bad: Sequence[VerifiedSide]) -> str:
    """Return the worst outcome of some parts in words."""
    if any(one.outcome is VerificationOutcome.ANOTHER for one in bad):
        return "another model, precision or cache"
    return "a fault of single requests"


def name_parts(sides: Sequence[VerifiedSide]) -> Iterator[str]:
    """Yield which part of each deployment differs, as far as its servers show it. Pure."""
    wholes = dict.fromkeys(one.part_of for one in sides if one.part_of is not None)
    for whole in wholes:
        parts = [one for one in sides if one.part_of == whole]
        bad = [one for one in parts if one.outcome in UNSOUND]
        roles = {one.role for one in parts}
        if bad:
            names = ", ".join(one.name for one in bad)
            yield f"{whole}: found in {names}: {_name_faults(bad)} on its own"
        elif all(one.outcome in SOUND for one in parts) and roles >= set(ROLES.values()):
            yield (
                f"{whole}: each server on its own is sound, and together they are not: the transfer"
                " of the KV cache between them"
            )
        elif _differ_alike(next((one for one in sides if one.name == whole), None), parts):
            counts = ", ".join(f"{one.beyond_floor} of {one.asked}" for one in parts)
            yield (
                f"{whole}: each server on its own differs too (probes beyond the floor: {counts}),"
                " though less surely: what they share, such as weights, options or a store of KV"
                " caches, and not the hand-over between them"
            )


class PathMeter:
    """Reads the counters of the servers behind one endpoint before and after the probes.

    The servers are those that the user named, or those that the launcher or the orchestrator names.
    """

    def __init__(self, server: AskedServer, given: Sequence[GivenWorker] = ()) -> None:
        self._client = server.client
        self._given = {
            f"{one.role}_{number}": str(one.named.plan.launcher.options["base_url"])
            for number, one in enumerate(given)
        }
        self._endpoint: Endpoint = server.client.endpoint
        self._meter: SessionMeter | None = None

    async def begin(self) -> None:
        """Read the counters. Nothing is counted of servers that have none."""
        self._endpoint = await deployment.learn_deployment(self._endpoint, self._client)
        if self._given:
            info = msgspec.structs.replace(
                self._endpoint.info, servers=self._given, deployment=None
            )
            self._endpoint = replace(self._endpoint, info=info)
        self._meter = await engine_counters.begin(self._endpoint, self._client, 0, Companions())

    async def end(self) -> tuple[ServerCounts, ...]:
        """Return what was counted since then."""
        if self._meter is None:
            return ()
        found = await engine_counters.end(
            self._meter, self._endpoint, self._client, 0, Companions()
        )
        return found.servers


def describe_path(servers: Sequence[ServerCounts]) -> Iterator[str]:
    """Yield what the counters say about the transfer of the KV cache. Pure."""
    moved = count_moved(servers)
    if moved is not None:
        tokens, of = moved
        yield f"KV transfer: {tokens:,} of {of:,} prompt tokens came from other servers"


def warn_of_path(name: str, servers: Sequence[ServerCounts]) -> Iterator[str]:
    """Yield a warning if generation servers took over no KV cache, or some of it failed. Pure."""
    moved = count_moved(servers)
    if moved is not None and moved[1] and not moved[0]:
        yield (
            f"{name}: no KV cache crossed the wire: its generation servers computed all"
            f" {moved[1]:,} prompt tokens themselves, so the transfer was not tested"
        )
    for remark in engine_counters.list_transfer_faults(servers):
        yield f"{name}: {remark}"
