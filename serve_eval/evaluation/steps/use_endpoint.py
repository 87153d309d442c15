"""Provide an endpoint during a session: launch or reach it, probe it, and note it in the folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.evaluation import first_token
from serve_eval.evaluation.build_report import environment
from serve_eval.evaluation.capabilities import probe, warn_of_guided_decoding
from serve_eval.evaluation.endpoint import deployment, launched_path
from serve_eval.evaluation.endpoint.launch import Launching, launch
from serve_eval.evaluation.endpoint.server_quirks import quirks
from serve_eval.evaluation.endpoint.told_settings import learn_settings
from serve_eval.evaluation.rerun import Rerun
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.session_log import log_endpoint
from serve_eval.evaluation.steps.ask_again import wants_again
from serve_eval.evaluation.steps.open_tasks import open_again
from serve_eval.evaluation.steps.refuse_sampling import refuse_other_sampling
from serve_eval.evaluation.steps.settle_defaults import settle_defaults
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.evidence import engine_counters
from serve_eval.evidence.path_proof import foresee_path
from serve_eval.masking import Masking
from serve_eval.schema import Endpoint, ServerInfo, is_mutable
from serve_eval.storage import server_logs


def needs_endpoint(session: RunSession, rerun: Rerun) -> bool:
    """Return True if anything must be asked of the endpoint, if only its version."""
    if any(w.unfinished or w.list_unjudged(itself=True) for w in session.tasks):
        return True
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
    async with (
        (launching or partial(launch, notify=notify))(
            plan, session.prepared, folder
        ) as session.endpoint,
        connect(plan, session.endpoint, session.environ) as client,
    ):
        client.liveness.notify = notify
        session.endpoint = launched_path.describe(plan, session.endpoint)
        session.companions.join(client)
        if rerun == "version":  # The server's version is known only now.
            await open_again(
                session, rerun, server=ServerInfo.read(await client.describe()).version
            )
        if client.masking:
            if pods := session.endpoint.info.pods:  # A manifest may hold the key under any name.
                session.endpoint = session.endpoint.with_info(pods=client.masking.value(pods))
            session.open_files.callback(_hide_in_logs, session, session.endpoint, client.masking)
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
        *first_token.remarks(prepared, found),
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
