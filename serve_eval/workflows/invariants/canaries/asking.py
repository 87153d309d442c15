"""Send the requests of a canary pass, many in flight together, and keep every reply."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import msgspec

from serve_eval.checks.kinds.reasoning import find_thinking
from serve_eval.checks.thinking import NO_THOUGHTS
from serve_eval.client.attempts.retry import pause_s
from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.schema import CanaryRecord, Endpoint, Failure, Plan, Progress, Response
from serve_eval.storage.reports.invariants_files import CanaryLog
from serve_eval.workflows.invariants.canaries.prompts import (
    MOST_ROOM,
    TOOL_FIELDS,
    Canary,
    CanaryPlan,
)

TASK = "canaries"
"""Name of the pass in the progress."""


@dataclass(frozen=True, slots=True)
class CanaryClients:
    """Two clients of one endpoint: one asks for whole answers and the other one for streams.

    Each request has a connection of its own, so that no answer can be shifted on a connection of
    ours.
    """

    whole: Client
    streams: Client


async def open_clients(
    plan: Plan, endpoint: Endpoint, environ: Mapping[str, str], stack: AsyncExitStack
) -> CanaryClients:
    """Open both clients for the duration of the stack."""
    opened = [
        await stack.enter_async_context(
            connect(replace(plan, limits=replace(plan.limits, stream=stream)), endpoint, environ)
        )
        for stream in (False, True)
    ]
    return CanaryClients(*opened)


async def settle_forms(clients: CanaryClients, plan: CanaryPlan) -> CanaryPlan:
    """Return the plan with the forms of requests that the endpoint takes, and room for thoughts.

    An answer that ends within its thoughts could not show that it belongs to another request.
    Raises EndpointError if it takes neither chats nor texts.
    """
    results = [await send_probe(clients.whole, ping(chat)) for chat in (True, False)]
    takes = [isinstance(result, Response) for result in results]
    if not any(takes):
        why = [result.message for result in results if isinstance(result, Failure)]
        raise EndpointError(f"the endpoint answers neither chats nor texts: {'; '.join(why)}")
    tools = False
    if takes[0]:
        tools = isinstance(await send_probe(clients.whole, ping(True), extra=TOOL_FIELDS), Response)
    thinking = NO_THOUGHTS
    if takes[0] and plan.model is not None:
        thinking = await find_thinking(clients.whole, plan.model)
    return msgspec.structs.replace(
        plan,
        chat=takes[0],
        texts=takes[1],
        tools=tools,
        room=min(MOST_ROOM, thinking.room),
        no_thoughts=thinking.off,
    )


async def ask_canaries(
    clients: CanaryClients,
    canaries: Sequence[Canary],
    log: CanaryLog,
    *,
    in_flight: int,
    progress: Progress | None,
) -> list[CanaryRecord]:
    """Ask all requests, `in_flight` at a time, and return and log their records."""
    waiting, found = iter(canaries), list[CanaryRecord]()

    async def work() -> None:
        for canary in waiting:
            record = await _ask(clients.streams if canary.streamed else clients.whole, canary)
            log.append(record)
            found.append(record)
            if progress is not None:
                failed = Counter(one.failures[-1].kind for one in found if one.response is None)
                progress.update(TASK, len(found) - failed.total(), failed, None)

    if progress is not None:
        progress.begin(TASK, len(canaries), 0)
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())
    if progress is not None:
        progress.end(TASK)
    return found


async def _ask(client: Client, canary: Canary) -> CanaryRecord:
    """Send one request, again after failures that may pass, and return all that came back.

    Each attempt is a `send` of its own, since the client keeps only the last error message.
    """
    failures, answer = list[Failure](), None
    for attempt in range(1, client.limits.max_attempts + 1):
        result = await client.send(canary.request, once=True)
        if isinstance(result, Response):
            answer = result
            break
        failures.append(result)
        if not result.retryable or attempt == client.limits.max_attempts:
            break
        await asyncio.sleep(pause_s(attempt, None, random.Random()))
    return CanaryRecord(
        id=canary.id,
        kind=canary.kind,
        code=canary.code,
        chat=canary.chat,
        streamed=canary.streamed,
        response=answer,
        failures=tuple(failures),
    )
