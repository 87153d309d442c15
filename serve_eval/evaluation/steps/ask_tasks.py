"""Ask what has no answer: the tasks of a session become lanes of the engine."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from serve_eval.client.client import Client
from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.attribution.trace import noted
from serve_eval.evaluation.attribution.trace_files import noted_from_files
from serve_eval.evaluation.endpoint.hang_detector import HangDetector
from serve_eval.evaluation.endpoint.launch import watch_for_hung
from serve_eval.evaluation.engine.circuit_breaker import CircuitBreaker
from serve_eval.evaluation.engine.degradation_alarm import DegradationAlarm
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.load_session import LoadSession
from serve_eval.evaluation.engine.lockstep import Participant
from serve_eval.evaluation.engine.order import arranged, task_seed
from serve_eval.evaluation.engine.runner import ask
from serve_eval.evaluation.rerun import note_asked
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.steps.open_tasks import settle_scores
from serve_eval.evaluation.storage import sessions
from serve_eval.evaluation.storage.reply_proofs import run_proofs
from serve_eval.evaluation.storage.report_file import drop_report
from serve_eval.evaluation.task_run import TaskRun, random_order
from serve_eval.schema import Limits, is_mutable

LEAST_RETRY_BUDGET = 100
"""Retries that a run may spend however few samples it has."""


async def ask_tasks(session: RunSession, able: Sequence[TaskRun], client: Client, seat: Participant | None) -> None:
    """Ask what has no answer, of the tasks that the endpoint is `able` to do, and note who answered.

    With a `seat` each sample is sent when another run is about to send it too. Raises EndpointError when the endpoint
    is given up, and JournalError for an answer that cannot be kept.
    """
    hung = _hang_detector(session, able, client)
    for w in able:
        if is_mutable(w.p.task.name):
            pending = [w.tally.samples[i] for i in w.pending_samples()]
            note_asked(session.folder, w.p.task, pending, session.endpoint.info.version)
    journals = {w.p.task.name: w.journal for w in able}
    async with (
        noted_from_files(client, journals, session.folder, session.warnings.append),
        noted(client, journals, session.folder),
    ):
        await _ask_and_note_load(session, able, client, hung, seat)


def _hang_detector(session: RunSession, able: Sequence[TaskRun], client: Client) -> HangDetector | None:
    """Make what tells a slow endpoint from one that hangs, by requests such as those of the first task."""
    first = next((w.p for w in able if w.unfinished), None)
    if first is None:
        return None
    return watch_for_hung(session.plan, first, session.endpoint, client, session.environ, session.notify)


async def _ask_and_note_load(
    session: RunSession, tasks: Sequence[TaskRun], client: Client, hung: HangDetector | None, seat: Participant | None
) -> None:
    """Ask the tasks. What the engine did is noted in the folder, also when it is stopped."""
    folder = session.folder
    if client.retry_budget is None:
        missing = sum(len(w.tally.samples) - w.tally.scored for w in tasks)
        client.retry_budget = max(LEAST_RETRY_BUDGET, missing // 4)
    load = LoadSession(
        client,
        order_seed=session.seeds.samples,
        at_first=partial(drop_report, folder),
        hung=hung,
        proofs=run_proofs(folder),
        notify=session.notify,
    )
    limits = [session.plan.limits, *(earlier.limits for earlier in sessions.loads(folder))]
    try:
        await _ask_twice(session, tasks, load, limits, seat)
        settle_scores(tasks)
    except BaseException:
        with suppress(ServeEvalError, OSError):  # what ended the run is to be told, not this
            sessions.note_load(folder, load.load())
        raise
    sessions.note_load(folder, load.load())


async def _ask_twice(
    session: RunSession, tasks: Sequence[TaskRun], load: LoadSession, limits: Sequence[Limits], seat: Participant | None
) -> None:
    """Ask what has no answer and, at the end, once more what failed in a way that may have passed."""
    answered = sum(w.tally.scored for w in tasks)
    planned = sum(len(w.tally.samples) for w in tasks)
    watch = CircuitBreaker(answered=answered, planned=planned, max_error_rate=session.plan.limits.max_error_rate)
    lanes = [_lane(session, w, limits, seat) for w in tasks]
    if seat is not None:
        await seat.take((one.name, i) for one in lanes for i in one.positions)
    await ask(load, lanes, progress=session.progress, watch=watch)
    if seat is not None:
        await seat.leave()  # what failed is asked again by each when it comes to that
    await ask(load, [_once_more(w) for w in tasks if not w.spared], progress=session.progress)


def _lane(session: RunSession, w: TaskRun, limits: Sequence[Limits], seat: Participant | None) -> Lane:
    """Make the lane of a task. `limits` are those of all sessions, by which its order was random or not."""
    meet = None if seat is None else partial(seat.meet, w.p.task.name)
    planned = random_order(w, session.seeds, limits)
    alarm = None if planned is None else DegradationAlarm(w.tally, planned, session.notify, w.p.expected)
    return Lane(w.p.task.name, w.tally, w.journal, _positions(session, w), w.early, meet, alarm)


def _positions(session: RunSession, w: TaskRun) -> Sequence[int]:
    """Return the samples of a task that are to be asked, in the order of their starts."""
    if not w.unfinished:
        return ()  # it may have answers that turn out to be those to other requests
    if w.early is None:
        seed = task_seed(session.seeds.samples, w.p.task.name)
        return arranged(w.tally.samples, w.pending_samples(), session.plan.limits.order, seed)
    return array("q", (i for i in w.early.order if w.tally.score(i) is None))


def _once_more(w: TaskRun) -> Lane:
    """Make the lane of the samples that failed in a way that may have passed."""
    again = (i for i in w.tally.worth_another_pass() if i not in w.standing)
    return Lane(f"{w.p.task.name}, the failed once more", w.tally, w.journal, array("q", again))
