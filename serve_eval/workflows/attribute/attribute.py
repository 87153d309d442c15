"""The story of `serve-eval attribute`: the prompts of a run to each worker behind a front door, and to each pair.

A worker of trtllm-serve answers an ordinary request whole, also one that is a leg of a disaggregated deployment. A pair
is asked as the orchestrator does it: the context server for the first token, and the generation server with what that
one hands over. So a pair shows what no worker shows alone: a transfer that loses, or sides that do not fit.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from serve_eval.client import wire
from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError, NotComparableError, PlanError
from serve_eval.evaluation.attribution import latency, trace
from serve_eval.evaluation.attribution.from_run import ALPHA, EMPTY, FAILURES, WRONG, shares, wrong
from serve_eval.evaluation.attribution.latency import Timed
from serve_eval.evaluation.endpoint.launch import last_endpoint
from serve_eval.evaluation.engine.request import request_of
from serve_eval.evaluation.engine.scoring import ScoredApart, graded_of
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.task_run import scoring_of
from serve_eval.plugins import extensions
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import (
    Attributed,
    Attribution,
    Endpoint,
    Failure,
    FailureKind,
    Outcome,
    Plan,
    Request,
    Response,
    Sample,
    Task,
    WorkerShare,
)
from serve_eval.schema.base_url import normalise_base_url
from serve_eval.stats.contingency import CONTEXT, GENERATION, Cell
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS

SCHEMA_VERSION = 1
RESULT_FILE = "attribution.json"
SAMPLES, AT_A_TIME = 50, 4
"""Prompts, and how many of them are asked at a time, unless told otherwise."""
SERVER = "server"
ROLES = (CONTEXT, GENERATION, SERVER)
GOES_ON = ("length", "not_finished")
"""How a context server ends an answer that a generation server is to go on with."""
CLUSTER_ROLES = {"context_servers": CONTEXT, "generation_servers": GENERATION}


class Worker(NamedTuple):
    """A server behind the door, by its base URL. `given`: the user named it, so that it may get the key."""

    role: str
    url: str
    given: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What will be asked of whom."""

    plan: Plan
    endpoint: Endpoint
    workers: tuple[Worker, ...]
    prompts: tuple[tuple[Task, Sample], ...]
    pairs: tuple[tuple[Worker, Worker], ...]
    warnings: tuple[str, ...] = ()
    tasks: tuple[PreparedTask, ...] = ()

    @property
    def requests(self) -> int:
        """How many requests at most, but for second tries."""
        return len(self.prompts) * (len(self.workers) + 2 * len(self.pairs))

    def cost(self) -> str:
        """A line to print beforehand."""
        counts = [f"{n} {role}" for role in ROLES[:2] if (n := sum(one.role == role for one in self.workers))]
        counts = counts or [str(len(self.workers))]
        tokens = sum(request_of(task, sample).sampling.max_tokens for task, sample in self.prompts)
        answers = len(self.workers) + len(self.pairs)
        return (
            f"{len(self.prompts)} prompts to {' and '.join(counts)} servers and {len(self.pairs)} pairs: "
            f"{self.requests} requests, at most {tokens * answers} tokens of answers"
        )


@dataclass(slots=True)
class _Had:
    """What came of the answers of one phase: by the workers that had a hand in it (None: none of that role)."""

    scores: dict[str, list[tuple[tuple[str | None, str | None], str, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    empty: list[tuple[tuple[str | None, str | None], str, bool]] = field(default_factory=list)
    failed: list[tuple[tuple[str | None, str | None], str, bool]] = field(default_factory=list)
    times: list[Timed] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    unscored: list[str] = field(default_factory=list)

    async def take(
        self,
        who: tuple[str | None, str | None],
        task: Task,
        sample: Sample,
        result: Response | Failure | None,
        apart: ScoredApart | None,
    ) -> None:
        """None: one of them had no part in the answer. One that the scorer cannot judge has no score."""
        if result is None:
            return
        prompt = _prompt(task, sample)
        self.failed.append((who, prompt, isinstance(result, Failure)))
        if isinstance(result, Failure):
            self.messages.append(result.message)
            return
        self.times.append(Timed(*who, prompt, result.latency_s, result.usage.completion_tokens))
        graded = await graded_of(task, sample, result, apart)
        if isinstance(graded, Unfinished):
            self.unscored.append(f"{sample.id}: {graded.told}")
            return
        score, _ = graded
        self.scores[task.name].append((who, prompt, score.value))
        self.empty.append((who, prompt, score.outcome in (Outcome.EMPTY, Outcome.REASONING_ONLY)))


async def prepared(
    run: Path,
    plan: Plan,
    *,
    given: Sequence[Worker] = (),
    samples: int = SAMPLES,
    with_pairs: bool = True,
    seed: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Asking:
    """What will be asked: a random choice of the run's own prompts, of the workers that are `given` or known.

    Raises PlanError where no two workers can be compared or no task can be asked so, NotComparableError when the data
    are not those of the run any more.
    """
    extensions.include(plan.include_path)
    endpoint = last_endpoint(plan, run)
    workers = list(dict.fromkeys(given)) or await _known_workers(run, plan, endpoint, environ)
    counts = {role: [one for one in workers if one.role == role] for role in ROLES}
    if counts[SERVER] and len(counts[SERVER]) < len(workers):
        raise PlanError("--worker: servers that answer by themselves, or context and generation servers, not both")
    if not any(len(found) > 1 for found in counts.values()):
        told = ", ".join(f"{one.role} {one.url}" for one in workers) or "none"
        raise PlanError(
            f"no two workers of one role are known (known: {told})",
            hint="Name them: --worker context=http://host:8001 --worker generation=http://host:8002, or --worker URL.",
        )
    tasks = await asyncio.to_thread(prepare, replace(plan, no_reference=True))
    _check_same(run, tasks)
    able = [p for p in tasks if not (p.task.prompt_logprobs or p.task.program or p.task.questions)]
    able = [p for p in able if not any(sample.choices for sample in p.dataset.samples)]
    left = sorted({p.task.name for p in tasks} - {p.task.name for p in able})
    if not able:
        raise PlanError(f"{', '.join(left)}: such answers are not scored by themselves, so that workers cannot be told")
    every = [(p.task, sample) for p in able for sample in p.dataset.samples]
    rng = random.Random(f"{plan.seed if seed is None else seed}:attribute")
    chosen = rng.sample(every, min(samples, len(every)))
    pairs = [(c, g) for c in counts[CONTEXT] for g in counts[GENERATION]] if with_pairs else []
    warnings = [f"{name}: not asked, its answers are not scored by themselves" for name in left]
    one_token = all(request_of(task, sample).sampling.max_tokens <= 1 for task, sample in chosen)
    if pairs and one_token:
        pairs = []
        warnings.append("answers of one token never reach a generation server: pairs are not asked")
    return Asking(
        plan=plan,
        endpoint=endpoint,
        workers=tuple(workers),
        prompts=tuple(chosen),
        pairs=tuple(pairs),
        warnings=tuple(warnings),
        tasks=tuple(able),
    )


def worker(text: str) -> Worker:
    """`context=URL`, `generation=URL`, or a URL of a server that answers by itself. Raises PlanError."""
    role, sign, url = text.partition("=")
    if not sign:
        role, url = SERVER, text
    if role not in ROLES:
        raise PlanError(f"--worker: {role!r} is no role", hint=f"Roles: {', '.join(ROLES)}; or a URL alone.")
    return Worker(role, normalise_base_url(url), given=True)


async def attribute(
    run: Path,
    asking: Asking,
    *,
    at_a_time: int = AT_A_TIME,
    environ: Mapping[str, str] = os.environ,
    told: Callable[[str], None] = lambda line: None,
) -> Attributed:
    """Asks, judges, and writes attribution.json into the run folder. Raises EndpointError when no worker answers."""
    started_at, began = datetime.now(UTC), time.monotonic()
    alone, in_pairs = _Had(), _Had()
    async with AsyncExitStack() as stack:
        scoring = stack.enter_context(scoring_of(asking.plan, asking.tasks))
        clients = {
            one: await stack.enter_async_context(_client(asking, one, environ)) for one in dict.fromkeys(asking.workers)
        }
        await _reachable(clients)

        async def ask_each(task: Task, sample: Sample) -> None:
            request = request_of(task, sample)
            results = await asyncio.gather(*(clients[one].send(request) for one in asking.workers))
            for one, result in zip(asking.workers, results, strict=True):
                await alone.take(_place(one), task, sample, result, scoring.of(task.name))

        async def ask_pairs(task: Task, sample: Sample) -> None:
            request = request_of(task, sample)
            both = await asyncio.gather(*(_in_turn(clients[c], clients[g], request) for c, g in asking.pairs))
            for (c, g), joined in zip(asking.pairs, both, strict=True):
                await in_pairs.take((c.url, g.url), task, sample, joined, scoring.of(task.name))

        # One after the other: the times of workers are compared, and pairs load context and generation servers unlike.
        await _all_asked(asking, ask_each, at_a_time, lambda done: told(f"{done} prompts asked of each server"))
        if asking.pairs:
            await _all_asked(asking, ask_pairs, at_a_time, lambda done: told(f"{done} prompts asked of each pair"))
    warnings = list(asking.warnings)
    if asking.pairs and in_pairs.failed and all(failed for _, _, failed in in_pairs.failed):
        warnings.append(f"no pair of workers answered: {in_pairs.messages[0]}")
    if unscored := [*alone.unscored, *in_pairs.unscored]:
        warnings.append(f"the scorer could not judge {len(unscored)} answers, such as that of {unscored[0]}")
    alpha = ALPHA / 2 if asking.pairs else ALPHA
    tasks = {task.name: task for task, _ in asking.prompts}
    of_alone = _judged(alone, tasks, alpha, servers=any(one.role == SERVER for one in asking.workers))
    of_pairs = _judged(in_pairs, tasks, alpha) if asking.pairs else None
    of_alone, of_pairs, slow = _timed(of_alone, of_pairs, asking, alone, in_pairs, at_a_time)
    accused = any(row.accused for row in (*of_alone.rows, *(() if of_pairs is None else of_pairs.rows)))
    result = Attributed(
        schema_version=SCHEMA_VERSION,
        run=str(run),
        model=asking.endpoint.model or asking.plan.model,
        workers=tuple((one.role, one.url) for one in asking.workers),
        asked=len(asking.prompts),
        requests=asking.requests,
        alone=of_alone,
        in_pairs=of_pairs,
        exit_code=FAIL if accused else PASS if alone.scores else NOTHING_SCORED,
        started_at=started_at.isoformat(timespec="seconds"),
        wall_s=round(time.monotonic() - began, 3),
        warnings=(*warnings, *slow),
    )
    run_folder.write_private(run / RESULT_FILE, run_folder.pretty_json(result))
    return result


# ---------------------------------------------------------------------------------------------- before it


async def _known_workers(run: Path, plan: Plan, endpoint: Endpoint, environ: Mapping[str, str]) -> list[Worker]:
    """Those that the launcher started, else that are registered, else that the run was answered by."""
    roles = [(name.rpartition("_")[0], url) for name, url in (endpoint.info.servers or {}).items()]
    if found := [Worker(role, normalise_base_url(url)) for role, url in roles if role in (CONTEXT, GENERATION)]:
        return found
    if endpoint.base_url:
        async with connect(plan, endpoint, environ) as client:
            root = urlsplit(endpoint.base_url).path.removesuffix("/v1")
            reply = await client.exchange("GET", f"{root}/cluster_info")
        told = b"" if isinstance(reply, Failure) or reply.error is not None or reply.status != 200 else reply.content
        if found := _registered(told):
            return found
    lines = [one for of_task in (trace.read(run) or {}).values() for ones in of_task.values() for one in ones]
    named = {(CONTEXT, one.context) for one in lines} | {(GENERATION, one.generation) for one in lines}
    return [Worker(role, normalise_base_url(name)) for role, name in sorted(named, key=str) if name is not None]


def _registered(body: bytes) -> list[Worker]:
    """The workers of an answer of /cluster_info; empty where it names none."""
    try:
        there = msgspec.json.decode(body)["current_workers"]
        return [
            Worker(role, normalise_base_url(f"{one['host']}:{one['port']}"))
            for name, role in CLUSTER_ROLES.items()
            for one in there.get(name, ())
        ]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError, AttributeError, PlanError):
        return []


def _check_same(run: Path, tasks: Sequence[PreparedTask]) -> None:
    saved = run_folder.saved_fingerprints(run)
    changed = [p.task.name for p in tasks if saved.get(p.task.name) != dict(p.fingerprint)]
    if changed:
        raise NotComparableError(
            f"{', '.join(changed)}: the task or its data are not those of the run any more",
            hint="Make the run again, then attribute that one.",
        )


def _client(asking: Asking, one: Worker, environ: Mapping[str, str]) -> Client:
    """The key and the proxy are for the front door, and for workers that the user named."""
    limits = replace(asking.plan.limits, rate_limit=None, stream=False, max_attempts=2)
    endpoint = replace(asking.endpoint, base_url=one.url, model=asking.endpoint.model or asking.plan.model)
    if one.given:
        return connect(replace(asking.plan, limits=limits), endpoint, environ)
    return Client(endpoint, limits, max_tokens_field=asking.plan.connection.max_tokens_field)


async def _reachable(clients: Mapping[Worker, Client]) -> None:
    """Raises EndpointError when no server listens at any of the addresses."""
    found = await asyncio.gather(*(client.exchange("GET", "/health", timeout_s=10.0) for client in clients.values()))
    failures = [one for one in found if isinstance(one, Failure)]
    if len(failures) == len(found):
        first = next(iter(clients))
        raise EndpointError(
            f"none of {len(clients)} workers can be reached, such as {first.url}: {failures[0].message}",
            hint="Servers of a launcher end with their run: make it with --keep-servers. Others: --worker ROLE=URL.",
        )


# -------------------------------------------------------------------------------------------------- asking


async def _all_asked(
    asking: Asking,
    ask: Callable[[Task, Sample], Awaitable[None]],
    at_a_time: int,
    told: Callable[[str], None],
) -> None:
    """Every prompt, so many at a time."""
    gate, done = asyncio.Semaphore(at_a_time), 0

    async def one(task: Task, sample: Sample) -> None:
        nonlocal done
        async with gate:
            await ask(task, sample)
        done += 1
        if done % 10 == 0:
            told(f"{done} of {len(asking.prompts)}")

    try:
        async with asyncio.TaskGroup() as group:
            for task, sample in asking.prompts:
                group.create_task(one(task, sample))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _in_turn(context: Client, generation: Client, request: Request) -> Response | Failure | None:
    """An answer by a pair, as an orchestrator has it made, with the time of both legs. None where the context server
    has finished it."""
    number = (1 << 61) + secrets.randbits(60)  # as an orchestrator's: above 2 ** 40
    first = {"disaggregated_params": {"request_type": "context_only", "disagg_request_id": number}}
    began = time.monotonic()
    told = await _context_leg(context, _with(request, first))
    first_s = time.monotonic() - began
    if told is None or isinstance(told, Failure):
        return told
    params, ids = told
    prompt = "prompt" if isinstance(request.prompt, str) else "prompt_token_ids"
    handed = {prompt: ids, "disaggregated_params": {**params, "request_type": "generation_only"}}
    answer = await generation.send(_with(request, handed), once=True)
    if isinstance(answer, Failure):
        return answer
    return msgspec.structs.replace(answer, latency_s=first_s + answer.latency_s)


def _with(request: Request, more: Mapping[str, object]) -> Request:
    return msgspec.structs.replace(request, extra={**request.extra, **more})


async def _context_leg(client: Client, request: Request) -> tuple[dict[str, Any], list[int]] | Failure | None:
    """What the generation server is to be given, and the ids of the prompt."""
    body = wire.encode(request, client.endpoint.model or "", max_tokens_field=client.max_tokens_field)
    path = urlsplit(client.endpoint.base_url).path + wire.route(request.prompt)
    reply = await client.exchange("POST", path, body, timeout_s=client.limits.stall_timeout_s)
    if isinstance(reply, Failure):
        return reply
    if reply.error is not None or reply.status != 200:
        why = str(reply.error) if reply.error is not None else wire.describe(reply.content, client.masking.message)
        message = f"context server: HTTP {reply.status}: {why}"
        return Failure(kind=FailureKind.HTTP_ERROR, message=message, status=reply.status)
    try:
        answer = msgspec.json.decode(reply.content)
        choice = answer["choices"][0]
        if choice["finish_reason"] not in GOES_ON:
            return None
        return dict(choice["disaggregated_params"]), list(answer["prompt_token_ids"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, IndexError, TypeError, ValueError):
        message = f"context server: no hand-over: {wire.describe(reply.content, client.masking.message)}"
        return Failure(kind=FailureKind.INVALID_RESPONSE, message=message, status=reply.status)


# ------------------------------------------------------------------------------------------------- judging


def _place(one: Worker) -> tuple[str | None, str | None]:
    return (one.url, None) if one.role == CONTEXT else (None, one.url)


def _judged(had: _Had, tasks: Mapping[str, Task], alpha: float, *, servers: bool = False) -> Attribution:
    """Every prompt is a stratum: each worker is compared with the others on the same prompts."""
    bad = [
        (who, prompt, is_bad)
        for name, entries in had.scores.items()
        for (who, prompt, _), is_bad in zip(
            entries, wrong([value for _, _, value in entries], tasks[name].metric), strict=True
        )
    ]
    measures = {WRONG: _cells(bad), EMPTY: _cells(had.empty), FAILURES: _cells(had.failed)}
    rows = shares(measures, alpha)
    return Attribution(
        how="asked",
        joined=sum(not failed for _, _, failed in had.failed),
        planned=len(had.failed),
        alpha=alpha,
        rows=tuple(_as_server(row) for row in rows) if servers else rows,
    )


def _timed(
    alone: Attribution, in_pairs: Attribution | None, asking: Asking, of_each: _Had, of_pairs: _Had, at_a_time: int
) -> tuple[Attribution, Attribution | None, list[str]]:
    """With who lets wait, and that in words. The prompts that are asked first wait for whatever has to warm up, such as
    a first connection between two servers, and do not count."""
    warm = {_prompt(task, sample) for task, sample in asking.prompts[at_a_time:]}
    each, joint = ([one for one in had.times if one.prompt in warm] for had in (of_each, of_pairs))
    servers = any(one.role == SERVER for one in asking.workers)
    rows, pair_rows = latency.asked(each, joint)
    if servers:
        rows = tuple(replace(row, role=SERVER) for row in rows)
    found = [latency.told(row) for row in rows if row.slow]
    known = {row.worker for row in rows if row.slow}
    found += [latency.told(row, "answer of a pair") for row in pair_rows if row.slow and row.worker not in known]
    joint_part = None if in_pairs is None else replace(in_pairs, times=pair_rows)
    return replace(alone, times=rows), joint_part, found


def _prompt(task: Task, sample: Sample) -> str:
    return f"{task.name}/{sample.id}"


def _as_server(row: WorkerShare) -> WorkerShare:
    return replace(row, role=SERVER) if row.role == GENERATION else row


def _cells(answers: Iterable[tuple[tuple[str | None, str | None], str, bool]]) -> list[Cell]:
    return [Cell(context, generation, 1, int(bad), prompt) for (context, generation), prompt, bad in answers]
