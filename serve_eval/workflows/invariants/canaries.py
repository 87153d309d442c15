"""Ask an endpoint prompts with random codes, and look for the codes in replies to others.

A code of another request in a reply proves that data passed between requests: by the KV cache, by
an exchange of answers, by a cache in front, or by an error message. One is enough, since chance
gives 60 given bits with a probability of 2**-60. There is no scoring, and no task.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import msgspec

from serve_eval.checks.answer import NO_THOUGHTS
from serve_eval.checks.kinds.quality import find_thinking
from serve_eval.client.attempts.outcome import pause_s
from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError, PlanError, RunFolderError
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.evaluation.launch import check_launcher, launch, with_model
from serve_eval.evaluation.run_session import Stopwatch, ignore
from serve_eval.frozen import freeze_places
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import (
    CanaryRecord,
    CanaryResult,
    Endpoint,
    Failure,
    Plan,
    Progress,
    Response,
)
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import SERVERS
from serve_eval.storage.story_files import CANARIES
from serve_eval.storage.story_results import CanaryLog, open_canary_log, read_canary_log
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS
from serve_eval.workflows.invariants.canary_codes import (
    KINDS,
    MOST_ROOM,
    TOOL_FIELDS,
    Canary,
    CanaryPlan,
    KeptCanaryPlan,
    count_in_flight,
    make_canaries,
    search_codes,
)

REQUESTS = 400
"""Default number of requests."""


@with_scope
async def check_canaries(
    plan: Plan,
    out_dir: Path,
    *,
    seed: str | None = None,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    notify: Callable[[str], None] = ignore,
) -> CanaryResult:
    """Send the requests that the folder has no answer to, and search all replies.

    The plan's limit is the number of requests. Without `seed`, the codes are drawn, so that nobody
    else has them. Raises ServeEvalError for what stops a run.
    """
    clock = Stopwatch()
    if plan.limits.concurrency == "auto":
        raise PlanError("concurrency: canaries need a fixed number", hint="Such as 64.")
    extensions.include(plan.include_path)
    plan = await with_model(plan, environ)
    if not out_dir.exists():
        check_launcher(plan)
    with run_folder.hold(out_dir, CANARIES.plan, "canary pass"):
        known, begun = _open_plan(plan, out_dir, seed)
        CANARIES.drop(out_dir)
        records = read_canary_log(out_dir)
        canaries = make_canaries(known) if begun else []
        if not begun or _list_pending(canaries, records):
            known = await _ask_rest(
                plan, out_dir, known, begun=begun, progress=progress, environ=environ, notify=notify
            )
            canaries, records = make_canaries(known), read_canary_log(out_dir)
        found = _judge(known, canaries, records, clock)
        CANARIES.write(out_dir, found)
    return found


def _open_plan(plan: Plan, out_dir: Path, seed: str | None) -> tuple[CanaryPlan, bool]:
    """Return the plan of the folder, or a new one, and whether it was there before.

    Raises RunFolderError if the folder has replies of something else.
    """
    assert plan.limits.concurrency != "auto"
    wanted = CanaryPlan(
        seed=seed or secrets.token_hex(16),
        requests=plan.limit or REQUESTS,
        in_flight=plan.limits.concurrency,
        model=plan.model,
        endpoint=msgspec.json.encode(plan.launcher).decode(),
        base_url="",
        chat=False,
        texts=False,
        tools=False,
    )
    kept = CANARIES.find_plan(out_dir, KeptCanaryPlan)
    if kept is None:
        return wanted, False
    known = kept.plan
    for name in ("requests", "in_flight", "model", "endpoint"):
        before, now = getattr(known, name), getattr(wanted, name)
        if before != now:
            raise RunFolderError(
                f"{out_dir} holds a canary pass with {name} {before}, not {now}",
                hint="Use another folder with -o.",
            )
    return known, True


def _list_pending(canaries: Sequence[Canary], records: Mapping[str, CanaryRecord]) -> list[Canary]:
    """Return the requests without an answer."""
    return [one for one in canaries if one.id not in records or records[one.id].response is None]


async def _ask_rest(
    plan: Plan,
    out_dir: Path,
    known: CanaryPlan,
    *,
    begun: bool,
    progress: Progress | None,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> CanaryPlan:
    """Ask what has no answer yet. Return the plan, with the forms that the endpoint takes."""
    async with AsyncExitStack() as stack:
        logs = out_dir / SERVERS
        logs.mkdir(mode=0o700, exist_ok=True)
        endpoint = await stack.enter_async_context(launch(plan, (), logs, notify=notify))
        clients = await open_clients(plan, endpoint, environ, stack)
        if not begun:
            known = await settle_forms(clients, known)
            known = msgspec.structs.replace(known, base_url=endpoint.base_url)
        async with connect(plan, endpoint, environ) as client:
            rehearsal = known.rehearsal or await client.is_stand_in()
        known = msgspec.structs.replace(known, rehearsal=rehearsal)
        CANARIES.write_plan(out_dir, KeptCanaryPlan(plan=known))
        pending = _list_pending(make_canaries(known), read_canary_log(out_dir))
        with open_canary_log(out_dir) as log:
            await ask_canaries(clients, pending, log, in_flight=known.in_flight, progress=progress)
    return known


def _judge(
    known: CanaryPlan,
    canaries: Sequence[Canary],
    records: Mapping[str, CanaryRecord],
    clock: Stopwatch,
) -> CanaryResult:
    """Search the replies and return the result."""
    found = search_codes(records, {one.id: one.code for one in canaries})
    answers = [record for record in records.values() if record.response is not None]
    usages = [record.response.usage for record in answers if record.response is not None]
    counted = any(usage.cached_tokens is not None for usage in usages)
    by_kind = {
        kind: (
            sum(record.kind == kind for record in answers),
            sum(record.kind == kind and record.id in found.own for record in answers),
        )
        for kind in KINDS
        if any(one.kind == kind for one in canaries)
    }
    return CanaryResult(
        rehearsal=known.rehearsal,
        schema_version=CANARIES.version,
        model=known.model,
        base_url=known.base_url,
        requests=len(canaries),
        answers=len(answers),
        failures=len(canaries) - len(answers),
        in_flight=count_in_flight(records.values()),
        own=sum(record.id in found.own for record in answers),
        by_kind=by_kind,
        chance=found.chance,
        leaking=len({leak.into for leak in found.leaks}),
        leaks=found.leaks,
        suspicion=found.suspicion,
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens or 0 for usage in usages) if counted else None,
        exit_code=FAIL if found.leaks else PASS if answers else NOTHING_SCORED,
        started_at=clock.started_at,
        wall_s=clock.wall_s,
    )


TASK = "canaries"
"""Name of the pass in the progress."""


@freeze_places
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
