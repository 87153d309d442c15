"""The story of a watch: round after round, until it is told to end or an alarm ends it."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval.checks.check import Check
from serve_eval.checks.run import chosen, run_checks
from serve_eval.checks.session import Session
from serve_eval.client.connection import connect, openai_client
from serve_eval.errors import EndpointError, RunFolderError
from serve_eval.evaluation.endpoint.launch import with_model
from serve_eval.evaluation.engine.scoring import ScoredApart
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.task_run import scoring_of
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import HOLDOUT, Endpoint, Failure, Plan, Response
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.watch import judging, pool, record
from serve_eval.workflows.watch.alarming import Delivery, deliver
from serve_eval.workflows.watch.budget import LEAST, Budget, budget, checks_of, smoke_tokens
from serve_eval.workflows.watch.judging import Rules
from serve_eval.workflows.watch.pool import Pool
from serve_eval.workflows.watch.record import Alarm, Seen, State

if TYPE_CHECKING:
    from serve_eval.workflows.watch.metrics import Metrics

LEAST_PROMPTS = 20
"""Of fewer nothing can be learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is watched and how. `pool` is the task's; None: `prompts` generated questions. `timeout_s` bounds each
    request. `rounds` ends the watch after so many (None: never), `ends`: an alarm ends it."""

    plan: Plan
    pool: Pool | None
    prompts: int
    rules: Rules
    tokens: int
    smoke: bool
    every_s: float
    rounds: int | None
    timeout_s: float
    seed: int | None
    ends: bool
    delivery: Delivery

    @property
    def base_url(self) -> str:
        return str(self.plan.launcher.options["base_url"])

    @property
    def bound(self) -> dict[str, Any]:
        """What must not change while a watch goes on in its folder."""
        asked = {"questions": self.prompts} if self.pool is None else dict(self.pool.fingerprint)
        rules = record.plain(self.rules)
        if not self.rules.round_means:
            del rules["round_means"]  # which folders of older versions do not have
        return {"base_url": self.base_url, "asked": asked, "rules": rules}


async def watch(
    job: Watch,
    folder: Path,
    *,
    environ: Mapping[str, str],
    metrics: Metrics | None = None,
    forget: bool = False,
    told: Callable[[str], None] = lambda line: None,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Watches an endpoint; the exit code: FAIL where an alarm stands at the end.

    `forget` drops the alarms of before, and the evidence. `told` gets the lines for the user, `ready` is called when
    the endpoint was found to be there or the watch was known already. Raises EndpointError where it is not there at the
    start of a new watch, RunFolderError for the folder of another one, JournalError for a full disk.
    """
    prepared = [job.pool.prepared] if job.pool is not None and job.pool.prepared is not None else []
    with (
        run_folder.held(folder, record.STATE_FILE, "watch"),
        scoring_of(job.plan, prepared) as scoring,
        ExitStack() as stack,
    ):
        state, asked = await _begun(job, folder, environ)
        plan = _limited(replace(job.plan, model=state.model), job)
        for seen in record.later_than(folder, state.rounds):
            judging.judge(state, seen, job.rules)
        if forget:
            state.alarms, state.bets, state.silent = [], {}, 0
        record.save(folder, state)
        if metrics is not None:
            metrics.state(state, job.rules)
        ready()
        await _deliver(job, folder, state, environ, metrics, told)
        final = [alarm for alarm in state.standing if alarm.kind in judging.ALPHA]
        if job.ends and final:
            for alarm in final:
                told(f"the alarm of round {alarm.round} stands: {alarm.told}")
            told("When it is mended: the same command with --forget-alarms")
            return FAIL
        checks = checks_of(chosen("quick")) if job.smoke else []
        done = 0

        def ended() -> None:
            if (line := unjudged(state, job.rules)) is not None:
                told(line)

        stack.callback(ended)
        while True:
            began = time.monotonic()
            spending = budget(
                job.tokens,
                smoke=smoke_tokens(checks),
                prompt_tokens=state.prompt_tokens,
                answer_tokens=asked.answer_tokens,
            )
            apart = scoring.of(asked.task.name)
            seen = await _round(plan, job, state, asked, checks, spending, environ, apart)
            record.append(folder, seen)
            learning = state.accuracy is None
            new = judging.judge(state, seen, job.rules)
            record.save(folder, state)
            if metrics is not None:
                metrics.round(seen, [alarm.kind for alarm in new])
                metrics.state(state, job.rules)
            told(line(state, seen, job.rules))
            if learning and judging.blind(state, job.rules):
                told("warning: too few answers are right for any fall to be noticed: watch another task")
            for alarm in new:
                told(f"ALARM {alarm.name}: {alarm.told}")
            await _deliver(job, folder, state, environ, metrics, told)
            done += 1
            if len(state.answers) - len(state.dropped) < LEAST_PROMPTS:
                raise EndpointError(
                    f"{len(state.dropped)} of {len(state.answers)} prompts have no answer time and again: "
                    f"{seen.first_failure}",
                    hint="Watch another task, or a new folder when it is mended.",
                )
            if (new and job.ends) or done == job.rounds:
                return FAIL if state.standing else PASS
            await asyncio.sleep(max(0.0, began + job.every_s - time.monotonic()))


async def _begun(job: Watch, folder: Path, environ: Mapping[str, str]) -> tuple[State, Pool]:
    """The state of a watch and what it asks. A new one asks the endpoint how it wants to be asked."""
    state = record.load(folder, job.bound)
    if state is None and (folder / record.ROUNDS_FILE).exists():
        raise RunFolderError(f"{folder} has rounds and no state", hint="Begin anew in another folder with -o.")
    if state is not None:
        if job.plan.model not in (None, state.model):
            raise RunFolderError(f"{folder} watches the model {state.model}", hint="Use another folder with -o.")
        return state, job.pool or pool.generated(job.prompts, chat=state.chat)
    plan = _limited(await with_model(job.plan, environ), job)
    assert plan.model is not None
    async with connect(plan, Endpoint(base_url=job.base_url, model=plan.model), environ) as client:
        if job.pool is None:
            chat = await pool.answers_chat(client)
            asked = pool.generated(job.prompts, chat=chat)
        else:
            await pool.check_able(client, job.pool)
            asked, chat = job.pool, job.pool.task.chat
    count = len(asked.samples)
    if count < LEAST_PROMPTS:
        raise RunFolderError(f"{count} prompts are too few", hint=f"Watch at least {LEAST_PROMPTS}.")
    state = State(
        bound=record.plain(job.bound),
        seed=secrets.randbits(32) if job.seed is None else job.seed,
        model=plan.model,
        chat=chat,
        answers=[[] for _ in range(count)],
        usable=[[] for _ in range(count)],
        misses=[0] * count,
        prompt_tokens=asked.prompt_tokens(),
    )
    return state, asked


def _limited(plan: Plan, job: Watch) -> Plan:
    """Each request is sent once: what fails says how available the endpoint is."""
    limits = replace(
        plan.limits,
        max_attempts=1,
        connect_timeout_s=job.timeout_s,
        stall_timeout_s=job.timeout_s,
        sample_timeout_s=job.timeout_s,
    )
    return replace(plan, limits=limits)


async def _round(
    plan: Plan,
    job: Watch,
    state: State,
    asked: Pool,
    checks: Sequence[Check],
    spending: Budget,
    environ: Mapping[str, str],
    apart: ScoredApart | None,
) -> Seen:
    """Asks what is due, and tells what came."""
    number, started_at, began = state.rounds + 1, datetime.now(UTC), time.monotonic()
    due = spending.smoke_every and (state.rounds % spending.smoke_every == 0 or judging.asked_again(state))
    most = spending.questions(smoke=bool(due))
    if not state.rounds:
        most = min(most, LEAST)  # until a server has counted the tokens of a prompt
    positions = judging.questions_of(state, job.rules, most)
    seen = Seen(
        round=number,
        started_at=started_at.isoformat(timespec="seconds"),
        seconds=0.0,
        asked=positions,
        values=[],
        usable="",
        prompt_tokens=[],
        failures={},
    )
    async with connect(plan, Endpoint(base_url=job.base_url, model=plan.model), environ) as client:
        if due:
            package = partial(openai_client, plan, environ=environ, timeout_s=job.timeout_s)
            session = Session(client, model=plan.model, openai=package, timeout_s=job.timeout_s)
            done = await run_checks(session, checks, curl=lambda sent: "")
            seen.checks = {row.name: str(row.outcome) for row in done.rows}
            seen.told = {row.name: row.told for row in done.rows if row.outcome != "PASS"}
            seen.stopped = done.stopped
            seen.tokens += session.generated + sum(check.prompt_tokens for check in checks[: len(done.rows)])
        results = await pool.ask(client, asked, positions)
    for position, result in zip(positions, results, strict=True):
        await _note(seen, state, asked, position, result, apart)
    seen.failures = dict(Counter(str(one.kind) for one in results if isinstance(one, Failure)))
    failed = ((i, one) for i, one in zip(positions, results, strict=True) if isinstance(one, Failure))
    seen.first_failure = next((_told(asked, i, one) for i, one in failed), "")
    seen.seconds = round(time.monotonic() - began, 3)
    return seen


async def _note(
    seen: Seen, state: State, asked: Pool, position: int, result: Response | Failure, apart: ScoredApart | None
) -> None:
    """Adds the answer to a question, or that there was none."""
    if isinstance(result, Failure):
        seen.values.append(None)
        seen.usable += "0"
        seen.prompt_tokens.append(0)
        seen.tokens += state.prompt_tokens[position]
        return
    found = await pool.worth(asked, position, result, apart)
    if isinstance(found, Unfinished):
        seen.unscored += 1
        seen.first_unscored = seen.first_unscored or _unscored(asked, position, found)
        seen.values.append(None)
        seen.usable += "0"
    else:
        seen.values.append(found[0])
        seen.usable += "1" if found[1] else "0"
    seen.prompt_tokens.append(result.usage.prompt_tokens)
    seen.latencies_s.append(round(result.latency_s, 3))
    read = result.usage.prompt_tokens or state.prompt_tokens[position]
    seen.tokens += read + (result.usage.completion_tokens or asked.answer_tokens)


def _unscored(asked: Pool, position: int, why: Unfinished) -> str:
    """Why an answer has no value: of a hold-out sample only the kind, since messages quote what was expected."""
    sample = asked.samples[position]
    return f"{sample.id}: {why.raised if HOLDOUT in sample.metadata and why.raised else why.told}"


def _told(asked: Pool, position: int, failure: Failure) -> str:
    """What a failure says of itself: of a hold-out sample only its kind, since servers quote what they refuse."""
    if HOLDOUT not in asked.samples[position].metadata:
        return failure.message
    return f"{failure.kind} {failure.status or ''}".rstrip()


async def _deliver(
    job: Watch,
    folder: Path,
    state: State,
    environ: Mapping[str, str],
    metrics: Metrics | None,
    told: Callable[[str], None],
) -> None:
    """Gives every alarm away that has not been given yet, each once."""
    for alarm in state.alarms:
        if alarm.delivered:
            continue
        results = await deliver(job.delivery, _shown(alarm, job, state, folder), job.plan.connection, environ, told)
        alarm.delivered = True
        record.save(folder, state)
        if metrics is not None:
            metrics.delivered(results)


def _shown(alarm: Alarm, job: Watch, state: State, folder: Path) -> dict[str, object]:
    """An alarm as others get it."""
    about = {"base_url": job.base_url, "model": state.model, "folder": str(folder.absolute())}
    task = job.pool.task.name if job.pool is not None else "questions"
    kept = {name: getattr(alarm, name) for name in ("kind", "subject", "round", "at", "told", "figures")}
    return {"tool": "serve-eval watch", **kept, "task": task, **about}


def line(state: State, seen: Seen, rules: Rules) -> str:
    """A round in a line."""
    parts = [f"{seen.started_at[:19].replace('T', ' ')}  round {seen.round}"]
    if seen.asked:
        values = [value for value in seen.values if value is not None]
        mean = f", {sum(values) / len(values):.1%}" if values else ""
        failed = f" of {len(seen.asked)}" if len(values) < len(seen.asked) else ""
        parts.append(f"{len(values)}{failed} answered{mean}")
    if seen.checks is not None:
        counts = Counter(seen.checks.values())
        parts.append("smoke " + ", ".join(f"{counts[name]} {name}" for name in ("PASS", "FAIL", "UNSUPPORTED")))
    if state.accuracy is None:
        parts.append(f"baseline {math.floor(100 * judging.learnt(state, rules))}%")
    elif state.bets.get(judging.ACCURACY) is None:
        least = state.accuracy.floor - rules.tolerance
        parts.append(f"baseline complete: {state.accuracy.mean:.1%}; a fall below {least:.1%} is bet on")
    else:
        words = [f"{kind} {_wealth(judging.evidence(state, kind))} of {1 / a:.0f}" for kind, a in judging.ALPHA.items()]
        parts.append(f"evidence {', '.join(words)}")
    if seen.first_failure:
        parts.append(f"without an answer: {seen.first_failure}")
    if seen.unscored:
        parts.append(f"{seen.unscored} answers that the scorer could not judge, such as {seen.first_unscored}")
    return "; ".join([*parts, f"{seen.tokens} tokens"])


def unjudged(state: State, rules: Rules) -> str | None:
    """Return the last line of a watch whose baseline is not complete; None where it is."""
    if state.accuracy is not None:
        return None
    share, had = judging.learnt(state, rules), sum(map(len, state.answers))
    rounds = math.ceil(state.rounds * (1.0 / share - 1.0)) if share else None
    more = "" if rounds is None else f", some {rounds} round{'s' if rounds > 1 else ''} from here"
    return (
        f"Accuracy was not judged: the baseline is at {math.floor(100 * share)}% ({had} answers), and a fall is bet on "
        f"once it is complete{more}. The same command goes on."
    )


def _wealth(nats: float) -> str:
    """Evidence as a factor."""
    return f"{math.exp(nats):.3g}" if nats < 700.0 else "more than 1e300"
