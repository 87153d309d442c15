"""Begin a watch with the state in its folder, or with a new one after probing the endpoint."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from serve_eval.checks.kinds.reasoning import find_thinking
from serve_eval.checks.thinking import NO_THOUGHTS, OFF, Thinking
from serve_eval.client.connection import connect
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.endpoint.launch import with_model
from serve_eval.schema import Endpoint
from serve_eval.workflows.watch import pool, record
from serve_eval.workflows.watch.job import WatchJob
from serve_eval.workflows.watch.pool import QuestionPool
from serve_eval.workflows.watch.record import State, WatchedProbes

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
