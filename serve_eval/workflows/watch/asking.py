"""Ask one round of a watch, within the tokens that its budget allows.

Prompt tokens and generated tokens count. The functions are pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from serve_eval.checks.run import run_checks
from serve_eval.checks.session import ALIVE_TOKENS, Check, CheckSession
from serve_eval.client.client import Client
from serve_eval.client.connection import connect, openai_client
from serve_eval.errors import PlanError
from serve_eval.evaluation.probe_server import FIRST, AskedServer, Unreadable
from serve_eval.evaluation.results.scoring import ScoredApart
from serve_eval.evaluation.run_session import Stopwatch
from serve_eval.evidence.probe_floor import measure_distance
from serve_eval.frozen import freeze
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import HOLDOUT, Endpoint, Failure, LostAnswer, Probe, ProbeReading, Response
from serve_eval.workflows.watch import job as watch_job
from serve_eval.workflows.watch import judging
from serve_eval.workflows.watch.bets import ACCURACY, FLOOR_ALPHA
from serve_eval.workflows.watch.job import QuestionPool, WatchSession
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
        results = [take_first(one) for one in await watch_job.ask(client, session.pool, positions)]
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
    found = await watch_job.worth(asked, position, result, apart)
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
        in_flight=watch_job.IN_FLIGHT,
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


TOKENS = 16_000
"""Default number of tokens of a round."""
LEAST = 10
"""Questions that have to fit into a round without a smoke test."""
SHORT_PASSES = 4
"""Passes of a shorter baseline, which the description of the cost names as well."""
_ALIVE_PROMPT = 16
_LEFT_OUT = frozenset({"questions", "concurrency"})
"""Checks of the quick smoke test that a watch skips: the task asks enough questions, and production
has its own load."""


@freeze
class Budget:
    """The tokens of a round, of which `probes` are kept for the probes of a reference.

    A smoke test takes at most `smoke` tokens and runs every `smoke_every` rounds (0: never). A
    question takes at most `question` tokens.
    """

    tokens: int
    smoke: int
    smoke_every: int
    question: int
    probes: int = 0

    def questions(self, *, smoke: bool) -> int:
        """Return the number of questions that fit into a round."""
        return (self.tokens - self.probes - self.smoke * smoke) // self.question


def checks_of(checks: Sequence[Check]) -> list[Check]:
    """Return those checks of a smoke test that a watch runs."""
    return [check for check in checks if check.name not in _LEFT_OUT]


def smoke_tokens(checks: Sequence[Check]) -> int:
    """Return the largest number of tokens that the checks declare.

    It includes the short request after each check, which follows a failure.
    """
    return sum(
        check.tokens + check.prompt_tokens + ALIVE_TOKENS + _ALIVE_PROMPT for check in checks
    )


def budget(
    tokens: int, *, smoke: int, prompt_tokens: Sequence[int], answer_tokens: int, probes: int = 0
) -> Budget:
    """Return how a round spends its tokens.

    `probes` tokens are kept for probes. A smoke test that takes more than half of the rest runs
    every second round. One that takes more than all of it never runs. Raises PlanError if the
    tokens are too few.
    """
    question, rest = max(prompt_tokens) + answer_tokens, max(0, tokens - probes)
    if rest < LEAST * question:
        beside = f" and the probes, which take up to {probes} tokens" if probes else ""
        fewer = ", ask fewer probes with --set watch.probes_per_round=N" if probes else ""
        raise PlanError(
            f"--budget-tokens: {tokens} tokens are enough for {rest // question} questions of up"
            f" to {question} tokens{beside}",
            hint=(
                f"Give at least {LEAST * question + probes}{fewer}, or shorten the answers with"
                " --set TASK.max_tokens=N."
            ),
        )
    every = 0 if not smoke or smoke > rest else 1 if 2 * smoke <= rest else 2
    return Budget(
        tokens=tokens,
        smoke=smoke if every else 0,
        smoke_every=every,
        question=question,
        probes=probes,
    )


def describe_budget(
    one: Budget,
    *,
    every_s: float,
    prompts: int,
    passes: int,
    tolerance: float,
    learnt: bool = True,
) -> Iterator[str]:
    """Yield lines that describe the cost of a watch, and of its baseline before any alarm.

    `learnt`: the accuracy of the baseline is learnt, not given.
    """
    day = 86400.0 / every_s if every_s else 0.0
    plain = min(prompts, one.questions(smoke=False))
    mixed = min(prompts, one.questions(smoke=True))
    smoke = {0: "with no smoke test", 1: "with a smoke test"}.get(
        one.smoke_every, f"with a smoke test every {one.smoke_every} rounds"
    )
    asked = (
        f"{mixed}"
        if one.smoke_every == 1
        else f"{mixed} or {plain}"
        if one.smoke_every
        else f"{plain}"
    )
    yield (
        f"each round asks {asked} questions (at most {one.question} tokens each), {smoke},"
        f" and takes at most {one.tokens} tokens"
    )
    if day:
        yield f"per day: {day:.0f} rounds, at most {day * one.tokens:,.0f} tokens"
    cost = describe_cost(one, every_s=every_s, prompts=prompts, passes=passes)
    yield (
        f"the baseline asks {prompts} prompts {passes} times: {cost}. Until it is complete, no"
        " alarm about accuracy or usable answers is possible"
    )
    least = least_fall(prompts, passes, tolerance)
    if learnt and passes > SHORT_PASSES:
        cost = describe_cost(one, every_s=every_s, prompts=prompts, passes=SHORT_PASSES)
        short = least_fall(prompts, SHORT_PASSES, tolerance)
        yield (
            f"--set watch.passes={SHORT_PASSES} gives a shorter baseline with the same error rate:"
            f" {cost}. At best, it notices falls of more than {short:.1%} of the answers; the"
            f" longer one notices falls of more than {least:.1%}"
        )


def describe_probes(per_round: int, count: int, tokens: int, *, every_s: float) -> str:
    """Return a line that describes the cost of `per_round` probes of `count`, `tokens` a round."""
    asked, rounds = min(per_round, count), math.ceil(count / per_round)
    day = f", {86400.0 / every_s * tokens:,.0f} per day" if every_s else ""
    return (
        f"each round asks {asked} probes with at most {tokens:,} of these tokens{day}; all {count}"
        f" are asked once in {rounds} round{'s' if rounds > 1 else ''}. They need no baseline: an"
        " alarm that the model is another one is possible from the first round on"
    )


def least_fall(prompts: int, passes: int, tolerance: float) -> float:
    """Return the fall (0..1) that a watch can notice at best.

    It is the tolerance and the distance of the floor from the mean, if every prompt answers as
    before in all passes (`sequential_monitor.floor`).
    """
    return tolerance + (math.log(1.0 / FLOOR_ALPHA[ACCURACY]) + 2.0) / (prompts * (passes - 1))


def describe_cost(one: Budget, *, every_s: float, prompts: int, passes: int) -> str:
    """Return the rounds of a baseline, their time, and the most tokens that they take.

    The first round asks LEAST questions, since no server has counted their tokens yet.
    """
    rounds = 1 + math.ceil(max(0, prompts * passes - LEAST) / _per_round(one, prompts))
    wait = rounds * every_s
    time = (
        ""
        if not wait
        else f", {wait / 3600:.1f} hours"
        if wait >= 3600
        else f", {wait / 60:.1f} minutes"
        if wait >= 60
        else f", {wait:.0f} seconds"
    )
    smokes = math.ceil(rounds / one.smoke_every) if one.smoke_every else 0
    tokens = prompts * passes * one.question + smokes * one.smoke
    return f"about {rounds} rounds{time}, at most {tokens:,} tokens"


def _per_round(one: Budget, prompts: int) -> float:
    """Return the mean number of questions of a round."""
    plain, mixed = (min(prompts, one.questions(smoke=smoke)) for smoke in (False, True))
    per_round = mixed if one.smoke_every == 1 else (mixed + plain) / 2 if one.smoke_every else plain
    return max(1.0, per_round)
