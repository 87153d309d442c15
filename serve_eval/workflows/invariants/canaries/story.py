"""Ask an endpoint prompts with random codes, and look for the codes in replies to other prompts.

A code of another request in a reply proves that data passed between requests: by the KV cache, by
an exchange of answers, by a cache in front, or by an error message. One is enough, since chance
gives 60 given bits with a probability of 2**-60. There is no scoring, and no task.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from serve_eval.client.connection import connect
from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evaluation.endpoint.launch import check_launcher, launch, with_model
from serve_eval.evaluation.run_session import ignore
from serve_eval.evaluation.session_log import Stopwatch
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import CanaryRecord, CanaryResult, Plan, Progress
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import SERVERS
from serve_eval.storage.reports.invariants_files import open_canary_log, read_canary_log
from serve_eval.storage.story_files import CANARIES
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS
from serve_eval.workflows.invariants.canaries.asking import (
    ask_canaries,
    open_clients,
    settle_forms,
)
from serve_eval.workflows.invariants.canaries.prompts import (
    KINDS,
    Canary,
    CanaryPlan,
    KeptCanaryPlan,
    make_canaries,
)
from serve_eval.workflows.invariants.canaries.search import count_in_flight, search_codes

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
