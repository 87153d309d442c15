"""Provide an endpoint during a session: launch or reach it, probe it, and note it in the folder.

They are known only once the endpoint is probed, so that this is the one difference of a protocol
that is found after the tasks were prepared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial, reduce

from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.evaluation import deployment, settle
from serve_eval.evaluation import launch as evaluation_launch
from serve_eval.evaluation.ask_tasks import wants_again
from serve_eval.evaluation.build_report import environment
from serve_eval.evaluation.capabilities import probe, warn_of_guided_decoding
from serve_eval.evaluation.capabilities.sampling import (
    OtherSampling,
    choose_sent,
    compare_with_reference,
    join_routes,
    probe_defaults,
    put_logged,
    read_logged,
    to_fields,
)
from serve_eval.evaluation.deployment import learn_settings
from serve_eval.evaluation.earlier_run import Rerun
from serve_eval.evaluation.launch import Launching, launch, quirks
from serve_eval.evaluation.open_tasks import open_again
from serve_eval.evaluation.run_cost import find_spent_limit, time_servers
from serve_eval.evaluation.run_session import RunSession, log_endpoint
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.evidence import engine_counters
from serve_eval.evidence.path_proof import foresee_path
from serve_eval.masking import Masking
from serve_eval.plan.applicable_reference import LackingReference, find_lacking, is_replaced
from serve_eval.protocol.sampling_fields import SERVER_ADDS
from serve_eval.schema import Endpoint, SamplingDefaults, ServerInfo, is_mutable
from serve_eval.storage import server_logs


def needs_endpoint(session: RunSession, rerun: Rerun) -> bool:
    """Return True if anything must be asked of the endpoint, if only its version."""
    if any(w.list_unjudged(itself=True) for w in session.tasks):
        return True
    if any(w.unfinished for w in session.tasks):
        return not find_spent_limit(session)
    if wants_again(session):
        return True
    return rerun == "version" and any(is_mutable(w.prepared.task.name) for w in session.tasks)


@asynccontextmanager
async def open_endpoint(
    session: RunSession, launching: Launching | None, rerun: Rerun
) -> AsyncIterator[Client]:
    """Launch or reach the endpoint of the plan, and connect to it.

    `launching` yields the endpoint (None: `launch`). Raises LaunchError, PlanError and
    EndpointError.
    """
    plan, folder, notify = session.plan, session.folder, session.notify
    with time_servers(session):
        async with (
            (launching or partial(launch, notify=notify))(
                plan, session.prepared, folder
            ) as session.endpoint,
            connect(plan, session.endpoint, session.environ) as client,
        ):
            client.liveness.notify = notify
            session.endpoint = evaluation_launch.describe(plan, session.endpoint)
            session.companions.join(client)
            if rerun == "version":  # The server's version is known only now.
                await open_again(
                    session, rerun, server=ServerInfo.read(await client.describe()).version
                )
            if client.masking:
                if (
                    pods := session.endpoint.info.pods
                ):  # A manifest may hold the key under any name.
                    session.endpoint = session.endpoint.with_info(pods=client.masking.value(pods))
                session.open_files.callback(
                    _hide_in_logs, session, session.endpoint, client.masking
                )
            yield client


async def probe_endpoint(session: RunSession, client: Client) -> list[TaskRun]:
    """Probe the endpoint and note the result in the folder. Return the tasks that it can do.

    Raises NotComparableError if references were taken with other sampling fields, or if the command
    of the run refuses what the server adds.
    """
    prepared = [w.prepared for w in session.tasks]
    found, lacking = await probe(client, [w.prepared for w in session.tasks if w.unfinished])
    endpoint = session.endpoint.with_info(**await client.describe())
    session.endpoint = endpoint = await deployment.learn_deployment(endpoint, client)
    session.endpoint = endpoint = await learn_settings(session.plan, endpoint, client)
    defaults = await settle_defaults(session, client, lacking)
    lines = [
        *settle.remarks(prepared, found),
        *warn_of_guided_decoding(found),
        *quirks(session.plan, endpoint, [p.task for p in prepared]),
        *deployment.remarks(endpoint.info),
    ]
    for line in lines:
        session.notify(f"warning: {line}")
    session.noted.note_session(
        {
            "started_at": session.stopwatch.started_at,
            **({"part_of": session.part_of} if session.part_of else {}),
            **({"rerun": True} if session.rerun else {}),
            "endpoint": endpoint,
            "limits": session.plan.limits,
            **environment(),
            "abilities": found,
            "unsupported": lacking,
            **({} if defaults is None else {"sampling_defaults": defaults}),
        },
    )
    log_endpoint(session.log, endpoint, found, defaults)
    refuse_other_sampling(session)
    session.check_defaults(defaults)
    session.hidden_retries = (
        await client.count_hidden_retries() if endpoint.info.version is not None else {}
    )
    session.meter = await engine_counters.begin(
        endpoint, client, _count_answers(session), session.companions
    )
    for line in foresee_path(session.plan, session.meter):
        session.notify(f"warning: {line}")
    return [w for w in session.tasks if w.prepared.task.name not in lacking]


async def note_endpoint(session: RunSession, client: Client) -> None:
    """Note in the folder what the endpoint reports about itself after it was asked."""
    endpoint, before = session.endpoint, session.hidden_retries
    if before and (after := await client.count_hidden_retries()):
        retries = {role: max(0, count - before.get(role, 0)) for role, count in after.items()}
        endpoint = endpoint.with_info(hidden_retries=retries)
    session.endpoint = await deployment.learn_again(endpoint, client)
    session.noted.note_endpoint(session.endpoint)
    if session.meter is not None:
        counted = await engine_counters.end(
            session.meter, session.endpoint, client, _count_answers(session), session.companions
        )
        session.noted.note_counts(counted)


def _count_answers(session: RunSession) -> int:
    return sum(w.accumulator.scored for w in session.tasks)


def _hide_in_logs(session: RunSession, endpoint: Endpoint, masking: Masking) -> None:
    """Remove secrets that the servers received from their logs and traces."""
    files = server_logs.log_files(session.folder, session.noted.read(), endpoint.info)
    for path in server_logs.hide_secrets(
        [*files, *server_logs.trace_files(endpoint.info)], masking
    ):
        session.notify(
            f"warning: {path} holds a secret and cannot be rewritten: delete it, or protect it like"
            " the secret"
        )


async def settle_defaults(
    session: RunSession, client: Client, lacking: Collection[str]
) -> SamplingDefaults | None:
    """Return the sampling defaults of the endpoint, and have the client send neutral values.

    Each route that is asked is probed once in a run, also if the run resumes, and once for all runs
    of a command. None: no task asks for an answer, or the run was begun without the probe, and ends
    as it began. `lacking` are the tasks that are not asked.
    """
    asked = [
        w.prepared
        for w in session.tasks
        if not w.prepared.task.prompt_logprobs and w.prepared.task.name not in lacking
    ]
    found = session.noted.defaults()
    if found is None and asked and not session.noted.read():
        by_route = []
        for chat in sorted({one.chat for one in asked}, reverse=True):
            ask = partial(probe_defaults, client, session.endpoint, chat=chat)
            by_route.append(await session.companions.share_defaults(client, ask, chat=chat))
        found = reduce(join_routes, by_route)
        logs = server_logs.log_files(session.folder, (), session.endpoint.info)
        found = put_logged(found, read_logged(logs))
    if found is None:
        return None
    found = choose_sent(found, session.plan.server_defaults)
    client.encoder.neutral = to_fields(found)
    return found


def refuse_other_sampling(session: RunSession) -> None:
    """Take the references away from the tasks that they may not judge.

    `--allow-mismatch server_adds` keeps them. Raises NotComparableError for all of them, unless the
    plan allows that a task has none.
    """
    other = list(_list_other(session))
    plan = session.plan
    if SERVER_ADDS in plan.allow_mismatch:
        for w, _ in other:
            w.prepared = replace(w.prepared, protocol=_allow(w.prepared.protocol or ""))
        return
    refused = [
        LackingReference(
            w.prepared.spec.name,
            w.prepared.task.name,
            f"the protocol differs from the reference's: {one.told}",
            (SERVER_ADDS,),
            one.hint,
            replaced=w.prepared.reference is not None and is_replaced(plan, w.prepared.reference),
        )
        for w, one in other
    ]
    for error in find_lacking(plan, refused):
        raise error
    for (w, _), lacking in zip(other, refused, strict=True):
        session.notify(f"warning: {lacking.task}: no verdict: {lacking.why}")
        w.prepared = replace(
            w.prepared, reference=None, why_no_reference=lacking.why, protocol=None
        )
        if w.early is not None:
            w.early, w.note = None, "no early stop: there is no reference"


def _list_other(session: RunSession) -> Iterator[tuple[TaskRun, OtherSampling]]:
    """Yield the tasks whose sampling differs from that of their reference."""
    found = session.noted.defaults()
    for w in session.tasks:
        reference = w.prepared.reference
        if reference is None:
            continue
        other = compare_with_reference(found, reference, w.prepared.task)
        if other is not None and other.differs:
            yield w, other


def _allow(protocol: str) -> str:
    """Return the text about a protocol with the mismatch that is allowed."""
    told = "mismatch allowed: "
    before, found, fields = protocol.partition(told)
    names = [*filter(None, fields.split(", ")), *([] if SERVER_ADDS in fields else [SERVER_ADDS])]
    start = before if found else f"{before}, " if before else ""
    return f"{start}{told}{', '.join(names)}"
