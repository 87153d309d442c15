"""Launch or reach the servers of a verification."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError
from serve_eval.evaluation.endpoint.launch import launch, with_model
from serve_eval.evaluation.engine.answer_tokens import Unreadable
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.probes.asking import FIRST, AskedServer
from serve_eval.evaluation.storage.file_names import SERVERS
from serve_eval.schema import Plan

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

    `probes` is the budget per server, `floor` a given floor in nats (None: the sibling's), `text` a
    file of paragraphs in place of the tasks' prompts.
    """

    probes: int = PROBES
    floor: float | None = None
    seed: int = 0
    text: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySession:
    """The rules of a verification, its folder, and where secrets and remarks go."""

    rules: VerifyRules
    out_dir: Path
    environ: Mapping[str, str]
    notify: Callable[[str], None]


@asynccontextmanager
async def open_server(
    named: NamedPlan, session: VerifySession, *, chat: bool | None = None
) -> AsyncIterator[AskedServer]:
    """Launch or reach a server, and find out which questions it takes. `chat` is that of settle."""
    plan = await with_model(named.plan, session.environ, notify=session.notify)
    async with _reach_server(named.name, plan, session) as server:
        await settle_server(server, chat=chat)
        yield server


async def open_servers(
    named: Sequence[NamedPlan],
    session: VerifySession,
    stack: AsyncExitStack,
    *,
    chat: bool | None = None,
) -> list[AskedServer]:
    """Launch or reach servers, and find out of all together which questions they take.

    They stay open until `stack` closes. `chat` is that of settle.
    """
    plans = await _gather(
        with_model(one.plan, session.environ, notify=session.notify) for one in named
    )
    opened = [
        await stack.enter_async_context(_reach_server(one.name, plan, session))
        for one, plan in zip(named, plans, strict=True)
    ]
    await _gather(settle_server(one, chat=chat) for one in opened)
    return opened


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
        yield AskedServer(
            name=name,
            client=client,
            in_flight=IN_FLIGHT if most == "auto" else min(IN_FLIGHT, most),
        )


async def settle_server(server: AskedServer, *, chat: bool | None = None) -> None:
    """Find out which questions a server takes. `chat` is that of settle.

    Raises EndpointError if it takes none.
    """
    try:
        await server.settle(FIRST, chat=chat)
    except Unreadable as error:
        raise EndpointError(f"{server.name}: {error}") from error
