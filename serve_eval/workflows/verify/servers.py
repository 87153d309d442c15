"""Launch or reach the servers of a verification, and compare what they make of requests."""

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
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError, NotComparableError, PlanError, ServeEvalError
from serve_eval.evaluation.capabilities.sampling import (
    choose_sent,
    name_difference,
    probe_defaults,
    put_logged,
    read_logged,
    to_fields,
)
from serve_eval.evaluation.launch import launch, with_model
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.probe_server import FIRST, AskedServer, Unreadable
from serve_eval.evidence.probe_judging import UNSOUND
from serve_eval.evidence.prompt_audit import audit, find_gap
from serve_eval.evidence.prompt_tokens import PromptSide
from serve_eval.frozen import freeze, freeze_places
from serve_eval.schema import (
    FailureKind,
    LostServer,
    Plan,
    ProbeReading,
    ProbeRoute,
    Progress,
    VerificationOutcome,
    VerificationReference,
    VerifiedSide,
    is_rehearsal,
)
from serve_eval.storage.file_names import SERVERS

T = TypeVar("T")
PROBES = 200
"""Default budget of probes per server."""
IN_FLIGHT = 16
"""Most requests in flight at a server."""


@freeze_places
class NamedPlan:
    """A server to ask: its name in the result, and the plan that reaches or launches it."""

    name: str
    plan: Plan
    _: KW_ONLY


@freeze
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


@freeze
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
    named: NamedPlan, session: VerifySession, *, route: ProbeRoute | None
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
    route: ProbeRoute | None,
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
    if plan.connection.route != "chat":
        raise PlanError(
            f"{name}: connection.route: probes need log-probabilities, which are not read from"
            " /v1/responses",
            hint="Ask by the usual routes: --set connection.route=chat.",
        )
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


async def settle_server(server: AskedServer, *, route: ProbeRoute | None) -> bool:
    """Find out which questions a server takes, and return True. `route` is that of settle.

    Raises EndpointError if it takes none.
    """
    try:
        await server.settle(FIRST, route=route)
    except Unreadable as error:
        raise EndpointError(f"{server.name}: {error}") from error
    await learn_defaults(server)
    return True


SOUND = (VerificationOutcome.IDENTICAL, VerificationOutcome.OTHER_NUMERICS)


async def learn_defaults(server: AskedServer) -> None:
    """Find out what a server adds to requests, and have its probes sent with neutral values.

    Probes of two tokens hardly show a penalty, and where they do it would look like a fault.
    """
    endpoint = server.client.endpoint
    endpoint = endpoint.with_info(**await server.client.describe())
    chat = server.route is not ProbeRoute.TEXT
    found = await probe_defaults(server.client, endpoint, chat=chat)
    log = endpoint.info.log_file
    server.defaults = put_logged(found, read_logged([] if log is None else [Path(log)]))
    server.client.encoder.neutral = to_fields(choose_sent(found, "neutral"))
    server.requests += found.requests
    server.tokens += found.tokens


def judge_defaults(side: VerifiedSide, known: VerificationReference, name: str) -> VerifiedSide:
    """Return a side whose server answers alike but adds other fields to requests than `name`."""
    told = name_difference(known.sampling_defaults, side.sampling_defaults, (name, side.name))
    if not told:
        return side
    if side.outcome in UNSOUND:
        return msgspec.structs.replace(side, why=f"{side.why}. Besides, {told}")
    why = f"{told}. Apart from that: {side.outcome.value}: {side.why}"
    return msgspec.structs.replace(side, outcome=VerificationOutcome.OTHER_DEFAULTS, why=why)


def warn_of_unseen(known: VerificationReference, sides: Sequence[VerifiedSide]) -> list[str]:
    """Return a line if the sampling defaults of servers called sound are not known, and why."""
    wholes = [one for one in sides if one.part_of is None and one.outcome in SOUND]
    if not wholes:
        return []
    if known.sampling_defaults is None:
        return [
            "the sampling defaults of the servers were not compared: the reference holds none"
            " (register it again)"
        ]
    found = []
    for name, one in (
        ("the reference", known.sampling_defaults),
        *[(one.name, one.sampling_defaults) for one in wholes if one.sampling_defaults is not None],
    ):
        if fields := [field.sent_as for field in one.possible]:
            why = f" ({one.unknown})" if one.unknown else ""
            found.append(
                f"it is not known whether {name} adds {', '.join(fields)} to requests{why}"
            )
    return found


def compare_counts(gaps: Sequence[int]) -> tuple[str, ...]:
    """Return a line if a server counts more or fewer prompt tokens than the reference's. Pure.

    `gaps` are the differences, by prompt. This needs no running reference.
    """
    gap = find_gap(gaps)
    if gap is None or gap.tokens == 0:
        return ()
    return (
        f"prompts: the server counts {gap.amount} than the reference's in {gap.prompts} of"
        f" {gap.of} probes: {gap.cause}",
    )


async def audit_prompts(server: AskedServer, other: Client | PromptSide) -> tuple[str, ...]:
    """Return a line for each prompt that a server reads as other tokens than another side."""
    findings = await audit(server.client, other)
    return tuple(
        f"prompt {one.prompt}: {one.told}. {one.advice}" for one in findings if one.same is False
    )
