"""Find the workers behind an endpoint: from the user, the launcher, a registry or a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.connection import connect
from serve_eval.errors import PlanError
from serve_eval.schema import Endpoint, Failure, Plan
from serve_eval.schema.base_url import find_address, normalise_base_url
from serve_eval.stats.contingency import CONTEXT, GENERATION
from serve_eval.storage.records.answer_origins import read_traces

SERVER = "server"
ROLES = (CONTEXT, GENERATION, SERVER)
CLUSTER_ROLES = {"context_servers": CONTEXT, "generation_servers": GENERATION}


class Worker(NamedTuple):
    """A worker, by its base URL. `given`: the user named it, so it may receive the key."""

    role: str
    url: str
    given: bool = False


def worker(text: str) -> Worker:
    """Parse `context=URL`, `generation=URL`, or the URL of a server that answers on its own.

    Raises PlanError.
    """
    role, sign, url = text.partition("=")
    if not sign:
        role, url = SERVER, text
    if role not in ROLES:
        raise PlanError(
            f"--worker: {role!r} is not a role", hint=f"Roles: {', '.join(ROLES)}; or give a URL."
        )
    return Worker(role, normalise_base_url(url), given=True)


async def list_workers(
    run: Path, plan: Plan, endpoint: Endpoint, environ: Mapping[str, str]
) -> list[Worker]:
    """Return the workers that the launcher started, or else the registered ones.

    If neither is known, return the workers that answered in the run, if their names are addresses.
    """
    if found := _list_launched(endpoint):
        return found
    if endpoint.base_url and (found := await _in_cluster(plan, endpoint, environ)):
        return found
    lines = [
        one
        for of_task in (read_traces(run) or {}).values()
        for ones in of_task.values()
        for one in ones
    ]
    named = {(CONTEXT, one.context) for one in lines} | {
        (GENERATION, one.generation) for one in lines
    }
    return [
        Worker(role, url)
        for role, name in sorted(named, key=str)
        if name is not None and (url := find_address(name)) is not None
    ]


def _list_launched(endpoint: Endpoint) -> list[Worker]:
    """Return the workers that the launcher reports, or that the run learned of the deployment."""
    roles = [(name.rpartition("_")[0], url) for name, url in (endpoint.info.servers or {}).items()]
    if not any(role in (CONTEXT, GENERATION) for role, _ in roles):
        roles = [(one.role or SERVER, one.url) for one in endpoint.info.workers]
    return [
        Worker(role, normalise_base_url(url))
        for role, url in roles
        if role in (CONTEXT, GENERATION)
    ]


async def _in_cluster(plan: Plan, endpoint: Endpoint, environ: Mapping[str, str]) -> list[Worker]:
    """Return the workers that are registered with the orchestrator."""
    async with connect(plan, endpoint, environ) as client:
        root = urlsplit(endpoint.base_url).path.removesuffix("/v1")
        reply = await client.exchange("GET", f"{root}/cluster_info")
    if isinstance(reply, Failure) or reply.error is not None or reply.status != 200:
        return []
    return list_registered(reply.content)


def list_registered(body: bytes) -> list[Worker]:
    """Return the workers in a response of /cluster_info; empty if it names none."""
    try:
        there = msgspec.json.decode(body)["current_workers"]
        return [
            Worker(role, normalise_base_url(f"{one['host']}:{one['port']}"))
            for name, role in CLUSTER_ROLES.items()
            for one in there.get(name, ())
        ]
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        KeyError,
        TypeError,
        AttributeError,
        PlanError,
    ):
        return []
