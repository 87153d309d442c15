"""One round of a watch: a smoke test if due, as many questions as the tokens allow, and probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from serve_eval.checks.run import run_checks
from serve_eval.checks.session import CheckSession
from serve_eval.client.client import Client
from serve_eval.client.connection import connect, openai_client
from serve_eval.evaluation.results.scoring import ScoredApart
from serve_eval.evaluation.session_log import Stopwatch
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import HOLDOUT, Endpoint, Failure, LostAnswer, Response
from serve_eval.workflows.watch import judging, pool
from serve_eval.workflows.watch.budget import LEAST, Budget, budget, smoke_tokens
from serve_eval.workflows.watch.job import WatchSession
from serve_eval.workflows.watch.pool import QuestionPool
from serve_eval.workflows.watch.probing import ask_probes, plan_probes
from serve_eval.workflows.watch.record import Seen, State


async def ask_round(session: WatchSession) -> Seen:
    """Send the requests of a round and return the results."""
    clock, job, state, plan = Stopwatch(), session.job, session.state, session.plan
    spending = budget(
        job.tokens,
        smoke=smoke_tokens(session.checks),
        prompt_tokens=state.prompt_tokens,
        answer_tokens=session.pool.answer_tokens,
        probes=plan_probes(session),
    )
    due = bool(spending.smoke_every) and (
        state.rounds % spending.smoke_every == 0 or judging.is_asked_again(state)
    )
    positions = _questions(session, spending, smoke=due)
    seen = Seen(
        round=state.rounds + 1,
        started_at=clock.started_at,
        seconds=0.0,
        asked=positions,
        values=[],
        usable="",
        prompt_tokens=[],
        failures={},
    )
    async with connect(
        plan, Endpoint(base_url=job.base_url, model=plan.model), session.environ
    ) as client:
        if due:
            await _smoke(session, client, seen)
        results = [take_first(one) for one in await pool.ask(client, session.pool, positions)]
        await _note_all(session, seen, results)
        await ask_probes(session, client, seen)
    seen.seconds = clock.wall_s
    return seen


def _questions(session: WatchSession, spending: Budget, *, smoke: bool) -> list[int]:
    """Return the positions of the questions of a round."""
    most = spending.questions(smoke=smoke)
    if not session.state.rounds:
        most = min(most, LEAST)  # No server has counted the tokens of a prompt yet.
    return judging.questions_of(session.state, session.job.rules, most)


async def _smoke(session: WatchSession, client: Client, seen: Seen) -> None:
    """Run a smoke test and record its rows."""
    plan, timeout_s = session.plan, session.job.timeout_s
    package = partial(openai_client, plan, environ=session.environ, timeout_s=timeout_s)
    smoke = CheckSession(client, model=plan.model, openai=package, timeout_s=timeout_s)
    done = await run_checks(smoke, session.checks, curl=lambda sent: "")
    seen.checks = {row.name: str(row.outcome) for row in done.rows}
    seen.told = {row.name: row.told for row in done.rows if row.outcome != "PASS"}
    seen.stopped = done.stopped
    seen.tokens += smoke.generated + sum(
        check.prompt_tokens for check in session.checks[: len(done.rows)]
    )


async def _note_all(
    session: WatchSession, seen: Seen, results: Sequence[Response | Failure]
) -> None:
    """Record the result of each question, and the reasons of failures."""
    apart = session.scoring.of(session.pool.task.name)
    for position, result in zip(seen.asked, results, strict=True):
        await note(seen, session.state, session.pool, position, result, apart)
    seen.failures = dict(Counter(str(one.kind) for one in results if isinstance(one, Failure)))
    failed = (
        (i, one) for i, one in zip(seen.asked, results, strict=True) if isinstance(one, Failure)
    )
    seen.first_failure = next((_show_failure(session.pool, i, one) for i, one in failed), "")


async def note(
    seen: Seen,
    state: State,
    asked: QuestionPool,
    position: int,
    result: Response | Failure,
    apart: ScoredApart | None,
) -> None:
    """Record the answer to a question, or its failure."""
    if isinstance(result, Failure):
        seen.values.append(None)
        seen.usable += "0"
        seen.prompt_tokens.append(0)
        seen.tokens += state.prompt_tokens[position]
        return
    found = await pool.worth(asked, position, result, apart)
    if isinstance(found, Unfinished):
        seen.unscored += 1
        seen.first_unscored = seen.first_unscored or _explain_unscored(asked, position, found)
        seen.values.append(None)
        seen.usable += "0"
    else:
        seen.values.append(found[0])
        seen.usable += "1" if found[1] else "0"
    seen.prompt_tokens.append(result.usage.prompt_tokens)
    seen.latencies_s.append(round(result.latency_s, 3))
    read = result.usage.prompt_tokens or state.prompt_tokens[position]
    seen.tokens += read + (result.usage.completion_tokens or asked.answer_tokens)


def take_first(result: Response | Failure) -> Response | Failure:
    """Return the result, or a failure if an earlier answer to the question was lost.

    The answer that came is another one, and its score would hide the first.
    """
    if isinstance(result, Failure):
        return result
    for attempt in result.attempts:
        if attempt.failure is not None and attempt.lost_answer is not LostAnswer.NOTHING:
            told = "its first answer was lost; a later attempt was answered"
            return Failure(kind=attempt.failure, message=told, attempts=result.attempts)
    return result


def _explain_unscored(asked: QuestionPool, position: int, why: Unfinished) -> str:
    """Return why an answer has no value.

    For a hold-out sample this is only the kind of error: messages quote the expected answer.
    """
    sample = asked.samples[position]
    return f"{sample.id}: {why.raised if HOLDOUT in sample.metadata and why.raised else why.told}"


def _show_failure(asked: QuestionPool, position: int, failure: Failure) -> str:
    """Return the message of a failure.

    For a hold-out sample this is only its kind: servers quote the prompts that they reject.
    """
    if HOLDOUT not in asked.samples[position].metadata:
        return failure.message
    return f"{failure.kind} {failure.status or ''}".rstrip()
