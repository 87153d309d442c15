"""Settle which sampling defaults the endpoint has, and what requests send in their place."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial, reduce

from serve_eval.client.client import Client
from serve_eval.evaluation.capabilities.sampling import (
    choose_sent,
    join_routes,
    probe_defaults,
    put_logged,
    read_logged,
    to_fields,
)
from serve_eval.evaluation.run_session import RunSession
from serve_eval.schema import SamplingDefaults
from serve_eval.storage import server_logs


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
