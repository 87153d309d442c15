"""Settle which workers `check workers` asks, and with which prompts, before sending anything."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.connection import connect
from serve_eval.errors import NotComparableError, PlanError
from serve_eval.evaluation.launch import last_endpoint
from serve_eval.evaluation.prepare import prepare
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.plugins import extensions
from serve_eval.protocol.sampling_fields import ROUTE
from serve_eval.schema import Endpoint, Failure, Plan, Sample, SamplingDefaults, Task
from serve_eval.schema.base_url import find_address, normalise_base_url
from serve_eval.stats.contingency import CONTEXT, GENERATION
from serve_eval.storage import run_folder
from serve_eval.storage.answer_origins import read_traces
from serve_eval.storage.sessions import read_sessions
from serve_eval.storage.story_files import COMPARE
from serve_eval.storage.story_results import locate_runs


def find_side(folder: Path) -> Path:
    """Return the run folder of B in the folder of a comparison, and any other folder as it is.

    Raises RunFolderError for a comparison whose plan is damaged.
    """
    return locate_runs(folder)[1][1] if COMPARE.has_plan(folder) else folder


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


SAMPLES = 50
"""Default number of prompts."""


@freeze
class Asking:
    """The prompts to ask, and the workers and pairs to ask.

    `defaults` says which neutral sampling values the run sent, which every worker gets too.
    `auth_key_env` names the variable with the key that servers not started by us share.
    """

    plan: Plan
    endpoint: Endpoint
    workers: tuple[Worker, ...]
    prompts: tuple[tuple[Task, Sample], ...]
    pairs: tuple[tuple[Worker, Worker], ...]
    warnings: tuple[str, ...] = ()
    tasks: tuple[PreparedTask, ...] = ()
    defaults: SamplingDefaults | None = None
    auth_key_env: str | None = None

    @property
    def one_each(self) -> bool:
        """True for one context and one generation server."""
        return sorted(one.role for one in self.workers) == [CONTEXT, GENERATION]

    @property
    def requests(self) -> int:
        """The most requests, without retries and the three per context server for its way."""
        return len(self.prompts) * (len(self.workers) + 2 * len(self.pairs))

    def cost(self) -> str:
        """Return a line about the cost, to print beforehand."""
        counts = [
            f"{n} {role}"
            for role in ROLES[:2]
            if (n := sum(one.role == role for one in self.workers))
        ]
        counts = counts or [str(len(self.workers))]
        tokens = sum(request_of(task, sample).sampling.max_tokens for task, sample in self.prompts)
        answers = len(self.workers) + len(self.pairs)
        return (
            f"{len(self.prompts)} prompts to {' and '.join(counts)} servers and {len(self.pairs)}"
            f" pairs: {self.requests} requests, at most {tokens * answers} generated tokens"
        )


async def prepare_asking(
    run: Path,
    plan: Plan,
    *,
    given: Sequence[Worker] = (),
    samples: int = SAMPLES,
    with_pairs: bool = True,
    seed: int | None = None,
    auth_key_env: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Asking:
    """Settle what to ask: a random choice of the run's own prompts, of given or known workers.

    Raises PlanError if `auth_key_env` is not set, if no two workers can be compared or no task is
    suitable, and NotComparableError if the data has changed since the run.
    """
    if auth_key_env is not None and not environ.get(auth_key_env):
        raise PlanError(f"--auth-key-env: the variable {auth_key_env} is not set")
    extensions.include(plan.include_path)
    sessions = read_sessions(run)
    endpoint = last_endpoint(plan, sessions)
    workers = list(dict.fromkeys(given)) or await list_workers(run, plan, endpoint, environ)
    _check_workers(workers, with_pairs=with_pairs)
    tasks = await asyncio.to_thread(prepare, replace(plan, no_reference=True))
    _check_same(run, tasks)
    able = [p for p in tasks if _is_scored_by_itself(p)]
    left = sorted({p.task.name for p in tasks} - {p.task.name for p in able})
    if not able:
        raise PlanError(
            f"{', '.join(left)}: these answers are not scored one by one, so workers cannot be"
            " compared"
        )
    every = [(p.task, sample) for p in able for sample in p.dataset.samples]
    rng = random.Random(f"{plan.seed if seed is None else seed}:attribute")
    chosen = rng.sample(every, min(samples, len(every)))
    pairs = _pairs(workers) if with_pairs else []
    warnings = [f"{name}: not asked, since its answers are not scored one by one" for name in left]
    if pairs and all(request_of(task, sample).sampling.max_tokens <= 1 for task, sample in chosen):
        pairs = []
        warnings.append("pairs are not asked: answers of one token never reach a generation server")
    if any(ROUTE in one.task.protocol for one in able):
        warnings.append("route: the run used /v1/responses, but workers are asked through chat")
    return Asking(
        plan=plan,
        endpoint=endpoint,
        workers=tuple(workers),
        prompts=tuple(chosen),
        pairs=tuple(pairs),
        warnings=tuple(warnings),
        tasks=tuple(able),
        defaults=next((one.sampling_defaults for one in sessions if one.sampling_defaults), None),
        auth_key_env=auth_key_env,
    )


def _check_workers(workers: Sequence[Worker], *, with_pairs: bool) -> None:
    """Raise PlanError if no two workers, and no pair with its two workers, can be compared."""
    counts = {role: sum(one.role == role for one in workers) for role in ROLES}
    if counts[SERVER] and counts[SERVER] < len(workers):
        raise PlanError(
            "--worker: give servers that answer on their own, or context and generation servers,"
            " not both"
        )
    pair = with_pairs and counts[CONTEXT] and counts[GENERATION]
    if not pair and not any(count > 1 for count in counts.values()):
        known = ", ".join(f"{one.role} {one.url}" for one in workers) or "none"
        raise PlanError(
            f"no role has two known workers (known: {known})",
            hint=(
                "Name them: --worker context=http://host:8001 --worker generation=http://host:8002,"
                " or --worker URL."
            ),
        )


def _is_scored_by_itself(prepared: PreparedTask) -> bool:
    """Return True if each answer of a task is scored as it comes, from one request."""
    if prepared.task.prompt_logprobs or prepared.task.program or prepared.task.questions:
        return False
    return not any(sample.choices for sample in prepared.dataset.samples)


def _pairs(workers: Sequence[Worker]) -> list[tuple[Worker, Worker]]:
    """Return every context server with every generation server."""
    context, generation = (
        [one for one in workers if one.role == role] for role in (CONTEXT, GENERATION)
    )
    return [(c, g) for c in context for g in generation]


def _check_same(run: Path, tasks: Sequence[PreparedTask]) -> None:
    """Raise NotComparableError if tasks or data have changed since the run."""
    saved = run_folder.read_fingerprints(run)
    changed = [p.task.name for p in tasks if saved.get(p.task.name) != dict(p.fingerprint)]
    if changed:
        raise NotComparableError(
            f"{', '.join(changed)}: the task or its data has changed since the run",
            hint="Run the evaluation again, then attribute the new run.",
        )
