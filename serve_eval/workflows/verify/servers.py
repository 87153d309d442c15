"""Launch or reach the servers of a verification."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError, NotComparableError, ServeEvalError
from serve_eval.evaluation.endpoint.launch import launch, with_model
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.probe_server import FIRST, AskedServer, Unreadable
from serve_eval.schema import (
    FailureKind,
    LostServer,
    Plan,
    ProbeReading,
    ProbeRoute,
    Progress,
    VerificationReference,
    is_rehearsal,
)
from serve_eval.storage.file_names import SERVERS
from serve_eval.workflows.verify.defaults import learn_defaults

T = TypeVar("T")
PROBES = 200
"""Default budget of probes per server."""
IN_FLIGHT = 16
"""Most requests in flight at a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPlan:
    """A server to ask: its name in the result, and the plan that reaches or launches it."""

    name: str
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRules:
    """The rules of a verification, fixed before the first request.

    `probes` and `tokens` are the budgets per server (tokens None: no limit), `floor` a given floor
    in nats (None: the sibling's), `text` a file of paragraphs in place of the tasks' prompts.
    `route` is how probes are asked (None: as texts if the server takes them, or else in chats).
    """

    probes: int = PROBES
    tokens: int | None = None
    floor: float | None = None
    seed: int = 0
    text: Path | None = None
    route: ProbeRoute | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySession:
    """The rules of a verification, its folder, and where secrets and remarks go.

    `progress` shows the probes of each server. `lost` are the servers without an outcome so far,
    with their `errors`. `stand_ins` names those at which the stand-in of a rehearsal answers.
    """

    rules: VerifyRules
    out_dir: Path
    environ: Mapping[str, str]
    notify: Callable[[str], None]
    progress: Progress | None = None
    lost: list[LostServer] = field(default_factory=list)
    errors: list[ServeEvalError] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)

    async def keep(self, name: str, job: Awaitable[T], *, part_of: str | None = None) -> T | None:
        """Return the result of a job about a server, or note that the server is lost."""
        try:
            return await job
        except ServeEvalError as error:
            self.lose(name, error, part_of=part_of)
            return None

    def lose(self, name: str, error: ServeEvalError, *, part_of: str | None = None) -> None:
        """Note that a server, or a part of a deployment, has no outcome, and why."""
        self.errors.append(error)
        self.lost.append(
            LostServer(name=name, why=str(error).removeprefix(f"{name}: "), part_of=part_of)
        )


def check_route(route: ProbeRoute | None, known: VerificationReference, source: str) -> None:
    """Raise NotComparableError if a reference was asked in another way than the user wants."""
    if route is None or (route is ProbeRoute.TEXT) is (known.route is ProbeRoute.TEXT):
        return
    was, given = (
        ("plain text", "true") if known.route is ProbeRoute.TEXT else ("chat requests", "false")
    )
    raise NotComparableError(
        f"{source}: the reference was asked with {was}, and answers to the two cannot be compared",
        hint=f"Leave out --set protocol.apply_chat_template={given}, or register a reference with"
        " it.",
    )


@asynccontextmanager
async def open_server(
    named: NamedPlan, session: VerifySession, *, route: ProbeRoute | None = None
) -> AsyncIterator[AskedServer]:
    """Launch or reach a server, and find out which questions it takes.

    `route` is that of settle.
    """
    plan = await with_model(named.plan, session.environ, notify=session.notify)
    async with _reach_server(named.name, plan, session) as server:
        await settle_server(server, route=route)
        yield server


async def open_servers(
    named: Sequence[NamedPlan],
    session: VerifySession,
    stack: AsyncExitStack,
    *,
    route: ProbeRoute | None = None,
) -> list[AskedServer]:
    """Launch or reach servers, and find out of all together which questions they take.

    They stay open until `stack` closes. `route` is that of settle. Servers that cannot be asked are
    noted in `session.lost`. Raises the first error if there is none left.
    """
    plans = await _gather(
        session.keep(one.name, with_model(one.plan, session.environ, notify=session.notify))
        for one in named
    )
    reached = [
        await session.keep(
            one.name, stack.enter_async_context(_reach_server(one.name, plan, session))
        )
        for one, plan in zip(named, plans, strict=True)
        if plan is not None
    ]
    opened = [one for one in reached if one is not None]
    settled = await _gather(
        session.keep(one.name, settle_server(one, route=route)) for one in opened
    )
    found = [one for one, able in zip(opened, settled, strict=True) if able]
    if not found and session.errors:
        raise session.errors[0]
    return found


async def _gather(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all jobs. If one raises, end the others first."""
    tasks = [asyncio.ensure_future(one) for one in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _reach_server(
    name: str, plan: Plan, session: VerifySession
) -> AsyncIterator[AskedServer]:
    prepared = await asyncio.to_thread(prepare, plan)
    most = plan.limits.concurrency
    logs = session.out_dir / SERVERS / quote(name, safe="").lstrip(".")
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with (
        launch(plan, prepared, logs, notify=session.notify) as endpoint,
        connect(plan, endpoint, session.environ) as client,
    ):
        if is_rehearsal(plan) or await client.is_stand_in():
            session.stand_ins.append(name)
        server = AskedServer(
            name=name,
            client=client,
            in_flight=IN_FLIGHT if most == "auto" else min(IN_FLIGHT, most),
        )
        with _show_progress(server, session):
            yield server


@contextmanager
def _show_progress(server: AskedServer, session: VerifySession) -> Iterator[None]:
    """Count the probes that a server answers, out of the most that it may be asked."""
    shown, most = session.progress, session.rules.probes
    if shown is None:
        yield
        return
    done, failed = 0, 0

    def count(reading: ProbeReading | None) -> None:
        nonlocal done, failed
        done, failed = done + (reading is not None), failed + (reading is None)
        shown.update(server.name, min(done, most), {FailureKind.INVALID_RESPONSE: failed}, None)

    shown.begin(server.name, most, 0)
    server.heard = count
    try:
        yield
    finally:
        shown.end(server.name)


async def settle_server(server: AskedServer, *, route: ProbeRoute | None = None) -> bool:
    """Find out which questions a server takes, and return True. `route` is that of settle.

    Raises EndpointError if it takes none.
    """
    try:
        await server.settle(FIRST, route=route)
    except Unreadable as error:
        raise EndpointError(f"{server.name}: {error}") from error
    await learn_defaults(server)
    return True
