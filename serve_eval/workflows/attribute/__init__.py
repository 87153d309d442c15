"""Send the prompts of a run to each worker behind an orchestrator, and to each pair of workers.

A worker of trtllm-serve answers an ordinary request completely, even as one leg of a disaggregated
deployment. A pair is asked as the orchestrator does it: the context server for the first token,
then the generation server with the data that the context server hands over. So a pair shows what no
worker shows alone: a transfer with losses, or two sides that do not fit together.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities.sampling import to_fields
from serve_eval.evaluation.engine.send import send
from serve_eval.evaluation.engine.talk import talk
from serve_eval.evaluation.results.scoring import ScoringProcesses
from serve_eval.evaluation.run_session import Stopwatch
from serve_eval.evaluation.task_run import open_scoring
from serve_eval.evidence.attribution import ALPHA
from serve_eval.frozen import freeze_places
from serve_eval.plan.prepared_task import request_of
from serve_eval.processes.resources import CoreLoad
from serve_eval.schema import (
    Attributed,
    Attribution,
    Failure,
    FailureKind,
    Progress,
    Request,
    Response,
    Sample,
    Task,
)
from serve_eval.stats.contingency import CONTEXT
from serve_eval.storage.story_files import ATTRIBUTE
from serve_eval.storage.story_results import check_attribution
from serve_eval.verdicts.exit_code import FAIL, INFRASTRUCTURE, NOTHING_SCORED, PASS, went_through
from serve_eval.workflows.attribute.answers import (
    PhaseAnswers,
    add_times,
    describe_front_door,
    judge_phase,
    judge_transfer,
    list_remarks,
)
from serve_eval.workflows.attribute.asking import (
    SAMPLES,
    SERVER,
    Asking,
    Worker,
    prepare_asking,
    worker,
)
from serve_eval.workflows.attribute.legs import (
    ADVICE,
    REFUSED,
    Handover,
    KvCounts,
    ask_pair,
    count_moved,
    find_handover,
    find_key,
)

__all__ = ["AT_A_TIME", "SAMPLES", "Asking", "Worker", "attribute", "prepare_asking", "worker"]

AT_A_TIME = 4
"""Default number of prompts that are asked at a time."""


async def attribute(
    run: Path,
    asking: Asking,
    *,
    at_a_time: int = AT_A_TIME,
    environ: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    measure: Callable[[], CoreLoad] = CoreLoad,
) -> Attributed:
    """Ask, judge, and write attribution.json into the run folder.

    `measure` begins to measure how busy the cores of this machine are.
    Raises EndpointError if no worker answers, and RunFolderError if a newer serve-eval wrote the
    attribution.json there.
    """
    clock = Stopwatch()
    check_attribution(run)
    cores = measure()
    asked = await _ask(asking, at_a_time, environ, progress)
    busy = cores.share()
    alone, in_pairs = asked.alone, asked.in_pairs
    warnings = (*asking.warnings, *list_remarks(alone, in_pairs))
    lost = asked.without_pairs if asking.pairs else None
    if asking.pairs and lost is None and in_pairs.failed and not in_pairs.times:
        said = in_pairs.messages[0]
        lost = f"no pair of workers answered: {said}"
        lost += f" ({ADVICE})" if REFUSED in said else ""
    of_alone, of_pairs, of_transfer, slow = _judge(asking, alone, in_pairs, at_a_time, busy)
    parts = (of_alone, *(part for part in (of_pairs, of_transfer) if part is not None))
    accused = any(row.accused for part in parts for row in part.rows)
    code = INFRASTRUCTURE if lost else PASS if alone.shows_answers else NOTHING_SCORED
    code = FAIL if accused else code
    front = None if accused or lost else describe_front_door(run, asking, alone, in_pairs)
    result = Attributed(
        schema_version=ATTRIBUTE.version,
        run=str(run),
        model=asking.endpoint.model or asking.plan.model,
        workers=tuple((one.role, one.url) for one in asking.workers),
        asked=len(asking.prompts),
        requests=asking.requests,
        alone=of_alone,
        in_pairs=of_pairs,
        transfer=of_transfer,
        rehearsal=asked.rehearsal,
        exit_code=went_through(code) if asked.rehearsal else code,
        started_at=clock.started_at,
        wall_s=clock.wall_s,
        warnings=(*((lost,) if lost else ()), *warnings, *((front,) if front else ()), *slow),
    )
    ATTRIBUTE.write(run, result)
    return result


# ------------------------------------------------------------------------------------------------
# Requests


@dataclass(slots=True, kw_only=True)
class _WorkerSession:
    """A session that asks each worker with a separate client, and collects the answers.

    `ways` has the way in which each context server hands over; `without_pairs` says why pairs were
    not asked, or did not work as pairs. `rehearsal`: the stand-in is among the workers. `key` is
    the key that the servers share (None: unknown, or they share none).
    """

    asking: Asking
    clients: Mapping[Worker, Client]
    scoring: ScoringProcesses
    key: str | None = None
    alone: PhaseAnswers = field(default_factory=PhaseAnswers)
    in_pairs: PhaseAnswers = field(default_factory=PhaseAnswers)
    ways: dict[Worker, Handover] = field(default_factory=dict)
    without_pairs: str | None = None
    rehearsal: bool = False

    async def find_ways(self) -> None:
        """Find out how each context server hands over, with the first prompt."""
        task, sample = self.asking.prompts[0]
        request = request_of(task, sample)
        partners = dict(reversed(self.asking.pairs))
        for one, partner in partners.items():
            clients = self.clients[one], self.clients[partner]
            way = await find_handover(*clients, request, self.key)
            if isinstance(way, Handover):
                self.ways[one] = way
            else:
                self.without_pairs = (
                    f"context server {one.url} hands nothing over, so no pair was asked: {way}"
                )
                return

    async def count_moved(self) -> KvCounts:
        """Return how many prompt tokens came to each generation server of vLLM as KV, so far."""
        ones = dict.fromkeys(
            generation
            for context, generation in self.asking.pairs
            if self.ways[context] is Handover.VLLM
        )
        return {one.url: await count_moved(self.clients[one]) for one in ones}

    def check_moved(self, before: KvCounts, after: KvCounts) -> None:
        """Note generation servers that computed all prompts again, by their own count."""
        idle = [url for url, count in after.items() if count is not None and count == before[url]]
        if idle and self.in_pairs.times:
            self.without_pairs = (
                f"generation server {', '.join(idle)} took over no KV cache: it computed the"
                " prompts again, so its pairs show nothing"
            )

    async def ask_each(self, task: Task, sample: Sample) -> None:
        """Ask each worker separately."""
        results = await asyncio.gather(
            *(send(self.clients[one], task, sample) for one in self.asking.workers)
        )
        for one, result in zip(self.asking.workers, results, strict=True):
            place = _place(one, self.asking)
            await self.alone.take(place, task, sample, result, self.scoring.of(task.name))

    async def ask_pairs(self, task: Task, sample: Sample) -> None:
        """Ask each pair of a context and a generation server."""
        request = request_of(task, sample)
        both = await asyncio.gather(
            *(self._ask_pair(c, g, sample, request) for c, g in self.asking.pairs)
        )
        for (c, g), joined in zip(self.asking.pairs, both, strict=True):
            await self.in_pairs.take(
                (c.url, g.url), task, sample, joined, self.scoring.of(task.name)
            )

    async def _ask_pair(
        self, context: Worker, generation: Worker, sample: Sample, request: Request
    ) -> Response | Failure | None:
        clients, way = (self.clients[context], self.clients[generation]), self.ways[context]
        if sample.conversation is None:
            return await ask_pair(*clients, request, way, self.key)

        async def ask(one: Request) -> Response | Failure:
            found = await ask_pair(*clients, one, way, self.key)
            return found or Failure(kind=FailureKind.INVALID_RESPONSE, message="no answer")

        return await talk(ask, sample, request)


async def _ask(
    asking: Asking, at_a_time: int, environ: Mapping[str, str], progress: Progress | None
) -> _WorkerSession:
    """Return the session with the answers of each worker alone, and those of pairs.

    The two phases run one after the other: the times of workers are compared, and pairs load
    context and generation servers differently.
    """
    async with AsyncExitStack() as stack:
        scoring = stack.enter_context(open_scoring(asking.plan, asking.tasks))
        clients = {
            one: await stack.enter_async_context(client_of(asking, one, environ))
            for one in dict.fromkeys(asking.workers)
        }
        await _reachable(clients)
        if asking.defaults is not None:
            for client in clients.values():
                client.encoder.neutral = to_fields(asking.defaults)
        key = find_key(asking.endpoint, asking.auth_key_env, environ)
        session = _WorkerSession(asking=asking, clients=clients, scoring=scoring, key=key)
        session.rehearsal = any([await one.is_stand_in() for one in clients.values()])
        gate = _PromptGate(asking, at_a_time, progress)
        await gate.ask_all("each server", session.ask_each)
        if asking.pairs:
            await session.find_ways()
        if asking.pairs and session.without_pairs is None:
            before = await session.count_moved()
            await gate.ask_all("each pair", session.ask_pairs)
            session.check_moved(before, await session.count_moved())
    return session


@freeze_places
class _PromptGate:
    """A limit on the prompts in flight, with the progress of each phase."""

    asking: Asking
    at_a_time: int
    progress: Progress | None

    async def ask_all(self, phase: str, ask: Callable[[Task, Sample], Awaitable[None]]) -> None:
        """Ask every prompt. Raises the first error."""
        prompts, shown = self.asking.prompts, self.progress
        gate, done = asyncio.Semaphore(self.at_a_time), itertools.count(1)

        async def ask_one(task: Task, sample: Sample) -> None:
            async with gate:
                await ask(task, sample)
            if shown is not None:
                shown.update(phase, next(done), {}, None)

        if shown is not None:
            shown.begin(phase, len(prompts), 0)
        try:
            async with asyncio.TaskGroup() as group:
                for task, sample in prompts:
                    group.create_task(ask_one(task, sample))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            if shown is not None:
                shown.end(phase)


def client_of(asking: Asking, one: Worker, environ: Mapping[str, str]) -> Client:
    """Return the client of a worker.

    The key and the proxy are only used for the orchestrator and for workers that the user named.
    """
    limits = replace(
        asking.plan.limits, rate_limit=None, requests_per_minute=None, stream=False, max_attempts=2
    )
    endpoint = replace(
        asking.endpoint, base_url=one.url, model=asking.endpoint.model or asking.plan.model
    )
    if one.given:
        by_chat = replace(asking.plan.connection, route="chat")  # legs have no other
        plan = replace(asking.plan, limits=limits, connection=by_chat)
        return connect(plan, endpoint, environ)
    return Client(
        endpoint,
        limits,
        max_tokens_field=asking.plan.connection.max_tokens_field,
        send_media=asking.plan.connection.send_media,
    )


async def _reachable(clients: Mapping[Worker, Client]) -> None:
    """Raise EndpointError if no server listens at any of the addresses."""
    found = await asyncio.gather(
        *(client.exchange("GET", "/health", timeout_s=10.0) for client in clients.values())
    )
    failures = [one for one in found if isinstance(one, Failure)]
    if len(failures) == len(found):
        first = next(iter(clients))
        raise EndpointError(
            f"none of {len(clients)} workers can be reached, such as {first.url}:"
            f" {failures[0].message}",
            hint=(
                "Servers of a launcher end with their run: use --keep-servers for the run. Name"
                " others with --worker ROLE=URL."
            ),
        )


def _place(one: Worker, asking: Asking) -> tuple[str | None, str | None]:
    """Return a worker as a pair of context and generation server, one of which is None.

    If each role has one server, the two are compared with each other, as if they had one role.
    """
    alone = one.role == CONTEXT and not asking.one_each
    return (one.url, None) if alone else (None, one.url)


# -----------------------------------------------------------------------------------------------
# Judgement


def _judge(
    asking: Asking,
    alone: PhaseAnswers,
    in_pairs: PhaseAnswers,
    at_a_time: int,
    busy: float | None,
) -> tuple[Attribution, Attribution | None, Attribution | None, list[str]]:
    """Judge the workers alone, the pairs, and the pairs against them; describe the slow ones."""
    alpha = ALPHA / 3 if asking.pairs else ALPHA
    tasks = {task.name: task for task, _ in asking.prompts}
    of_alone = judge_phase(
        alone,
        tasks,
        alpha,
        servers=asking.one_each or any(one.role == SERVER for one in asking.workers),
    )
    of_pairs = judge_phase(in_pairs, tasks, alpha) if asking.pairs else None
    of_transfer = judge_transfer(alone, in_pairs, tasks, alpha) if asking.pairs else None
    of_alone, of_pairs, slow = add_times(
        of_alone, of_pairs, asking, alone, in_pairs, at_a_time, busy
    )
    return of_alone, of_pairs, of_transfer, slow
