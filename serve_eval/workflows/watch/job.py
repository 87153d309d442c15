"""Begin the job of a watch, with the session that its rounds share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval.checks.answer import NO_THOUGHTS, OFF, Thinking
from serve_eval.checks.kinds.reasoning import find_thinking
from serve_eval.checks.session import Check
from serve_eval.client.connection import connect
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.endpoint.launch import with_model
from serve_eval.evaluation.results.scoring import ScoringProcesses
from serve_eval.schema import Endpoint, Plan
from serve_eval.workflows.watch import pool, record
from serve_eval.workflows.watch.alarming import Delivery
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.pool import QuestionPool
from serve_eval.workflows.watch.probes import WatchReference
from serve_eval.workflows.watch.record import State, WatchedProbes

if TYPE_CHECKING:
    from serve_eval.workflows.watch.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchJob:
    """The endpoint to watch, and how to watch it.

    `pool` holds the task's prompts; if it is None, the watch generates `prompts` questions.
    `reference` has the probes of each round (None: none).
    `tokens` is the budget of a round. `timeout_s` limits each request. The watch ends after
    `rounds` rounds (None: never) and, with `ends`, after an alarm.
    """

    plan: Plan
    pool: QuestionPool | None
    prompts: int
    rules: WatchRules
    tokens: int
    smoke: bool
    every_s: float
    rounds: int | None
    timeout_s: float
    seed: int | None
    ends: bool
    delivery: Delivery
    reference: WatchReference | None = None

    @property
    def base_url(self) -> str:
        """The base URL of the endpoint."""
        return str(self.plan.launcher.options["base_url"])

    @property
    def bound(self) -> dict[str, Any]:
        """The settings that must not change as long as a watch uses its folder."""
        asked = {"questions": self.prompts} if self.pool is None else dict(self.pool.fingerprint)
        rules = record.plain(self.rules)
        if not self.rules.round_means:
            del rules["round_means"]  # Folders of older versions do not have it.
        if not self.rules.baseline_hours:
            del rules["baseline_hours"]  # The same.
        bound = {"base_url": self.base_url, "asked": asked, "rules": rules}
        if self.reference is not None:
            bound["verify_reference"] = {"sha256": self.reference.digest}
        return bound

    def limit(self, plan: Plan) -> Plan:
        """Return the plan without retries: failures measure the availability of the endpoint."""
        limits = replace(
            plan.limits,
            max_attempts=1,
            connect_timeout_s=self.timeout_s,
            stall_timeout_s=self.timeout_s,
            sample_timeout_s=self.timeout_s,
        )
        return replace(plan, limits=limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSession:
    """The objects that the rounds of a watch share.

    `plan` has the model and the limits of the requests. `checks` are those of the smoke tests.
    """

    job: WatchJob
    plan: Plan
    folder: Path
    state: State
    pool: QuestionPool
    checks: list[Check]
    scoring: ScoringProcesses
    environ: Mapping[str, str]
    metrics: Metrics | None
    notify: Callable[[str], None]


LEAST_PROMPTS = 20
"""Smallest number of prompts from which a baseline can be learnt."""


async def begin(
    job: WatchJob, folder: Path, environ: Mapping[str, str]
) -> tuple[State, QuestionPool]:
    """Return the state of a watch and its questions.

    A new watch finds out whether the endpoint supports chat or completions.
    """
    state = record.load(folder, job.bound)
    if state is None and (folder / record.ROUNDS_FILE).exists():
        raise RunFolderError(
            f"{folder} has rounds but no state", hint="Start again in another folder with -o."
        )
    if state is None:
        return await _begin_anew(job, environ)
    if job.plan.model not in (None, state.model):
        raise RunFolderError(
            f"{folder} watches the model {state.model}", hint="Use another folder with -o."
        )
    thinking = Thinking(
        thinks=state.thoughts_off or state.thoughts_room > 0,
        off=OFF if state.thoughts_off else {},
        room=state.thoughts_room,
    )
    return state, job.pool or pool.generate_pool(job.prompts, chat=state.chat, thinking=thinking)


async def _begin_anew(job: WatchJob, environ: Mapping[str, str]) -> tuple[State, QuestionPool]:
    """Return a new state and its questions. Raises RunFolderError if there are too few prompts."""
    plan = job.limit(await with_model(job.plan, environ))
    assert plan.model is not None
    thinking = NO_THOUGHTS
    async with connect(plan, Endpoint(base_url=job.base_url, model=plan.model), environ) as client:
        if job.pool is None:
            chat = await pool.answers_chat(client)
            thinking = await find_thinking(client, plan.model) if chat else NO_THOUGHTS
            asked = pool.generate_pool(job.prompts, chat=chat, thinking=thinking)
        else:
            await pool.check_able(client, job.pool)
            asked, chat = job.pool, job.pool.task.chat
    count = len(asked.samples)
    if count < LEAST_PROMPTS:
        raise RunFolderError(
            f"{count} prompts are too few", hint=f"Watch at least {LEAST_PROMPTS}."
        )
    state = State(
        bound=record.plain(job.bound),
        seed=secrets.randbits(32) if job.seed is None else job.seed,
        model=plan.model,
        chat=chat,
        thoughts_off=bool(thinking.off),
        thoughts_room=thinking.room,
        answers=[[] for _ in range(count)],
        usable=[[] for _ in range(count)],
        misses=[0] * count,
        prompt_tokens=asked.prompt_tokens(),
        probes=None
        if job.reference is None
        else WatchedProbes(count=len(job.reference.known.probes)),
    )
    return state, asked


def _begin_probes(job: WatchJob) -> WatchedProbes | None:
    return None if job.reference is None else WatchedProbes(count=len(job.reference.known.probes))
