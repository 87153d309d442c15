"""Begin the job of a watch, with the questions that its rounds ask."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval.checks.answer import NO_THOUGHTS, OFF, Thinking
from serve_eval.checks.kinds.quality import (
    QUESTION_TOKENS,
    QualityQuestion,
    choose_wording,
    find_thinking,
    is_right,
    questions,
)
from serve_eval.checks.session import Check
from serve_eval.client.client import Client
from serve_eval.client.connection import connect
from serve_eval.client.preflight import refuse, trial
from serve_eval.errors import EndpointError, PlanError, RunFolderError
from serve_eval.evaluation.capabilities import probe
from serve_eval.evaluation.engine import send
from serve_eval.evaluation.launch import with_model
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.results.scoring import ScoredApart, ScoringProcesses, grade_answer
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.protocol.sampling_fields import fingerprint
from serve_eval.schema import (
    MEAN,
    DataRoots,
    Dataset,
    Endpoint,
    Failure,
    Hypothesis,
    Message,
    Metric,
    Outcome,
    Plan,
    Prompt,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.workflows.watch import record
from serve_eval.workflows.watch.alarming import Delivery
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.probes import WatchReference
from serve_eval.workflows.watch.record import State, WatchedProbes

if TYPE_CHECKING:
    from serve_eval.workflows.watch.metrics import Metrics


@freeze
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
        bound = {"base_url": self.base_url, "asked": asked, "rules": record.plain(self.rules)}
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


@freeze
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
    return state, job.pool or generate_pool(job.prompts, chat=state.chat, thinking=thinking)


async def _begin_anew(job: WatchJob, environ: Mapping[str, str]) -> tuple[State, QuestionPool]:
    """Return a new state and its questions. Raises RunFolderError if there are too few prompts."""
    plan = job.limit(await with_model(job.plan, environ))
    assert plan.model is not None
    thinking = NO_THOUGHTS
    async with connect(plan, Endpoint(base_url=job.base_url, model=plan.model), environ) as client:
        if job.pool is None:
            chat = await answers_chat(client)
            thinking = await find_thinking(client, plan.model) if chat else NO_THOUGHTS
            asked = generate_pool(job.prompts, chat=chat, thinking=thinking)
        else:
            await check_able(client, job.pool)
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


PROMPTS = 200
"""Default number of prompts of a pool."""
IN_FLIGHT = 8
"""Concurrent requests: a watch must add little load to the endpoint."""
_UNUSABLE = frozenset({Outcome.EMPTY, Outcome.REASONING_ONLY, Outcome.REFUSED, Outcome.UNPARSED})
_BYTES_PER_TOKEN, _TEMPLATE_TOKENS = 2, 32
"""Estimate for a prompt whose tokens no server has counted yet. Most tokenizers have four bytes per
token."""


@freeze
class QuestionPool:
    """The questions of a watch.

    `prepared` is set for a task that has to be probed. `fingerprint` identifies the questions and
    their scoring.
    """

    task: Task
    samples: Sequence[Sample]
    fingerprint: Mapping[str, str]
    prepared: PreparedTask | None = None

    @property
    def answer_tokens(self) -> int:
        """The largest max_tokens of all prompts."""
        own = [one.override.max_tokens for one in self.samples if one.override is not None]
        return max(
            [self.task.sampling.max_tokens, *(tokens for tokens in own if tokens is not None)]
        )

    def prompt_tokens(self) -> list[int]:
        """Return an upper estimate of each prompt's tokens, from its length."""
        return [_estimate(one) for one in self.samples]


def of_plan(plan: Plan) -> QuestionPool:
    """Return the pool of a plan's only task, with `limit` of its prompts.

    Raises PlanError for a task that cannot be watched, and the errors of its preparation.
    """
    if len(plan.tasks) != 1:
        raise PlanError(
            f"a watch takes one task, not {len(plan.tasks)}",
            hint="Start one watch per task, each with its own -o.",
        )
    extensions.include(plan.include_path)
    prepared = prepare(
        replace(plan, limit=plan.limit or (None if plan.subset else PROMPTS), no_reference=True)
    )
    if len(prepared) != 1:
        raise PlanError(f"{plan.tasks[0].name} is {len(prepared)} tasks; a watch takes one")
    one = prepared[0]
    task = one.task
    why = None
    if task.metric.lo is None or task.metric.hi is None:
        why = f"its scores ({task.metric.name}) have no lower or no upper limit"
    elif task.aggregation is not MEAN:
        why = "its value is not a mean of scores"
    elif task.program is not None or task.questions is not None or task.unsafe:
        why = "its answers are executed or need a judge"
    elif one.dataset.samples[0].choices:
        why = "it needs several requests per answer"
    elif any(turn.media for sample in one.dataset.samples for turn in _turns(sample)):
        why = "the number of tokens of its media is not known in advance"
    if why is not None:
        raise PlanError(
            f"{task.name} cannot be watched: {why}",
            hint="Watch gsm8k, mmlu or your own cases, for example.",
        )
    return QuestionPool(
        task=task, samples=one.dataset.samples, fingerprint=one.fingerprint, prepared=one
    )


def generate_pool(count: int, *, chat: bool, thinking: Thinking = NO_THOUGHTS) -> QuestionPool:
    """Return generated questions. Any instruction-tuned model answers nearly all of them.

    The thoughts of a model that thinks are switched off, or have room.
    """
    task = choose_task(chat=chat, thinking=thinking)
    dataset = task.load(DataRoots(), count)
    return QuestionPool(task=task, samples=dataset.samples, fingerprint=fingerprint(task, dataset))


async def answers_chat(client: Client) -> bool:
    """Return True if the endpoint answers chat requests, False if only completions.

    Raises EndpointError if it answers neither.
    """
    sampling = SamplingParams(max_tokens=2)
    failure = await trial(client, chat=True, sampling=sampling, extra={})
    if failure is None:
        return True
    if await trial(client, chat=False, sampling=sampling, extra={}) is not None:
        await refuse(client, failure, chat=True, extra={})
    return False


async def check_able(client: Client, pool: QuestionPool) -> None:
    """Raise EndpointError if the endpoint lacks what the task needs."""
    if pool.prepared is None:
        return
    _, lacking = await probe(client, [pool.prepared])
    for ability in lacking.values():
        raise EndpointError(
            f"{pool.task.name}: {ability.need}: {ability.seen}", hint=ability.help or ""
        )


async def ask(
    client: Client, pool: QuestionPool, positions: Sequence[int]
) -> list[Response | Failure]:
    """Send each of the prompts once, and return the results in their order."""
    places = asyncio.Semaphore(IN_FLIGHT)

    async def one(position: int) -> Response | Failure:
        async with places:
            return await send.send(client, pool.task, pool.samples[position])

    return list(await asyncio.gather(*map(one, positions)))


async def worth(
    pool: QuestionPool, position: int, response: Response, apart: ScoredApart | None
) -> tuple[float, bool] | Unfinished:
    """Return the score (0 to 1) of an answer and whether it was usable, or the scorer's error."""
    graded = await grade_answer(pool.task, pool.samples[position], response, apart)
    if isinstance(graded, Unfinished):
        return graded
    score, _ = graded
    return _unit(pool.task.metric, score.value), score.outcome not in _UNUSABLE


def _unit(metric: Metric, value: float) -> float:
    assert metric.lo is not None
    assert metric.hi is not None
    share = min(1.0, max(0.0, (value - metric.lo) / (metric.hi - metric.lo)))
    return share if metric.higher_is_better else 1.0 - share


def _turns(sample: Sample) -> tuple[Message, ...]:
    return () if isinstance(sample.prompt, str) else sample.prompt


def _estimate(sample: Sample) -> int:
    turns = _turns(sample)
    text = sample.prompt if isinstance(sample.prompt, str) else "".join(turn.text for turn in turns)
    return len(text.encode()) // _BYTES_PER_TOKEN + _TEMPLATE_TOKENS * max(1, len(turns))


NAME = "questions"
SEED = 1
"""The seed differs from that of serve-eval smoke, so that the questions differ."""


def choose_task(*, chat: bool, thinking: Thinking) -> Task:
    """Return the task, with chat prompts or with texts that start with two examples.

    Answers have no thoughts, or room for them.
    """

    def load(roots: DataRoots, wanted: int) -> Dataset:
        samples = [
            Sample(id=f"question-{i}", prompt=_prompt(one.text, chat=chat), target=one.wanted)
            for i, one in enumerate(questions(SEED, wanted))
        ]
        return Dataset(samples=samples, files=(), total=wanted)

    return Task(
        name=NAME,
        version=1,
        reference_file=NAME,
        metric=Metric(),
        hypothesis=Hypothesis(),
        sampling=SamplingParams(
            max_tokens=QUESTION_TOKENS + thinking.room, stop=() if chat else ("\n",)
        ),
        extra=thinking.off,
        protocol={},
        load=load,
        score=_score,
        answers=lambda sample: (sample.target, ""),
        chat=chat,
        scoring="inline",
    )


def _prompt(text: str, *, chat: bool) -> Prompt:
    worded = choose_wording(text, chat=chat)
    return (Message(role="user", content=worded),) if chat else worded


def _score(sample: Sample, response: Response) -> Score:
    right = is_right(QualityQuestion("", sample.target), response.text)
    return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG)
