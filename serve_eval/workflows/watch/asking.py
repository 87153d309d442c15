"""Ask one round of a watch: a smoke test if due, questions as tokens allow, and probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from serve_eval.checks.run import run_checks
from serve_eval.checks.session import CheckSession
from serve_eval.client.client import Client
from serve_eval.client.connection import connect, openai_client
from serve_eval.evaluation.probe_server import FIRST, AskedServer, Unreadable
from serve_eval.evaluation.results.scoring import ScoredApart
from serve_eval.evaluation.session_log import Stopwatch
from serve_eval.evidence.probes.floor import measure_distance
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import HOLDOUT, Endpoint, Failure, LostAnswer, Probe, ProbeReading, Response
from serve_eval.workflows.watch import judging, pool
from serve_eval.workflows.watch.budget import LEAST, Budget, budget, smoke_tokens
from serve_eval.workflows.watch.job import WatchSession
from serve_eval.workflows.watch.pool import QuestionPool
from serve_eval.workflows.watch.probes import WatchReference, choose_probes
from serve_eval.workflows.watch.record import Seen, SeenProbes, State


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


def plan_probes(session: WatchSession) -> int:
    """Return the tokens that the probes of the next round take at most; 0 without a reference."""
    reference = session.job.reference
    if reference is None:
        return 0
    return reference.sum_tokens(choose_probes(session.state, reference.per_round))


async def ask_probes(session: WatchSession, client: Client, seen: Seen) -> None:
    """Ask the probes of a round, and record their distances.

    None is asked if no question was answered: then the endpoint is down.
    """
    reference, probes = session.job.reference, session.state.probes
    if reference is None or probes is None:
        return
    found = seen.probes = SeenProbes(limit=reference.limits.beyond_floor)
    if seen.asked and not seen.came:
        return
    server = AskedServer(
        name=session.job.base_url,
        client=client,
        in_flight=pool.IN_FLIGHT,
        route=reference.known.route,
        salted=probes.salted and reference.known.salted,
        attempts=1,
    )
    if not probes.settled or server.salted is not reference.known.salted:
        found.unfit = await _settle(server, reference)
    if not found.unfit:
        # Without salts each probe is asked twice, which the budget does not expect.
        doubled = reference.known.salted and not server.salted
        most = max(1, reference.per_round // 2) if doubled else reference.per_round
        asked = [reference.known.probes[i] for i in choose_probes(session.state, most)]
        readings = await server.read_all([probe.prompt for probe in asked])
        _note(found, reference, asked, readings)
        found.first_failure = server.why
        seen.tokens += sum(
            reference.count_tokens(probe)
            for probe, reading in zip(asked, readings, strict=True)
            if reading is None or not reading.prompt_tokens
        )
    found.salted = server.salted
    seen.tokens += server.tokens


async def _settle(server: AskedServer, reference: WatchReference) -> str:
    """Find out whether the endpoint takes the reference's questions, and return why not."""
    try:
        await server.settle(FIRST, route=reference.known.route)
    except Unreadable as error:
        return str(error)
    server.salted = server.salted and reference.known.salted
    return "" if server.lists else "the endpoint reports no log-probabilities of its tokens"


def _note(
    found: SeenProbes,
    reference: WatchReference,
    asked: Sequence[Probe],
    readings: Sequence[ProbeReading | None],
) -> None:
    """Record the distance of each probe. Texts without log-probabilities are no evidence."""
    limits = reference.limits
    found.asked = [probe.id for probe in asked]
    for probe, reading in zip(asked, readings, strict=True):
        distance = None
        if reading is not None:
            found.listed |= bool(reading.tokens)
            distance = measure_distance(probe.id, probe.reading, reading)
        if distance is None or distance.texts_only:
            found.nats.append(None)
        else:
            found.nats.append(round(distance.nats, 6))
    found.beyond = sum(nats > limits.beyond_floor for nats in found.measured)
    found.far = sum(nats > limits.far_alone for nats in found.measured)
