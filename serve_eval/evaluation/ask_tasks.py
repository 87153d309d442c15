"""Ask what has no answer yet, with an alarm as soon as a task gets worse.

This comes after the counters of the engines were read, since a repeated prompt is a hit of the
prefix cache.

The alarm examines only the samples up to the first unfinished one, in the order of their starts.
Samples that finished early have to wait: quick answers differ from slow ones, and a long answer
that is still missing is often a bad one.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from functools import partial

from serve_eval.client.client import Client
from serve_eval.client.connection import SecretMask
from serve_eval.errors import JournalError, LaunchError, ServeEvalError, ServerEndedError
from serve_eval.evaluation.earlier_run import note_asked
from serve_eval.evaluation.engine.lane import Lane, arrange, task_seed
from serve_eval.evaluation.engine.load_session import CertaintyWatch, LoadSession
from serve_eval.evaluation.engine.runner import CircuitBreaker, ask
from serve_eval.evaluation.engine.start_times import Participant
from serve_eval.evaluation.hang_detector import HangDetector
from serve_eval.evaluation.launch import watch_for_hung
from serve_eval.evaluation.open_tasks import settle_scores
from serve_eval.evaluation.prove_path import compare_again, may_compare
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.degradation import Lookout, degradations, describe_so_far
from serve_eval.evaluation.run_cost import ends_when_certain, open_budget
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.task_run import TaskRun, random_order
from serve_eval.evidence.attribution.trace import note_named_servers, note_servers
from serve_eval.evidence.attribution.trace_files import note_servers_from_files
from serve_eval.schema import (
    Attempt,
    Degradation,
    Failure,
    FailureKind,
    Limits,
    LostAnswer,
    PathClaim,
    ThoughtsSeen,
    is_mutable,
)
from serve_eval.schema.media import MEDIA_NEEDS
from serve_eval.stats.onset import FIRST
from serve_eval.storage import run_folder
from serve_eval.storage.journal import withdrawals
from serve_eval.storage.prompts import has_prompts, keep_media, write_prompts
from serve_eval.storage.report_file import drop_report
from serve_eval.verdicts.below_reference import Expected

LEAST_RETRY_BUDGET = 100
"""Minimum number of retries of a run, even if it has few samples."""


async def ask_tasks(
    session: RunSession, able: Sequence[TaskRun], client: Client, participant: Participant | None
) -> None:
    """Ask what has no answer, for the `able` tasks, and note which servers answered.

    `able` are the tasks that the endpoint can do. With a `participant`, each sample is sent when
    another run is about to send it too. Raises EndpointError if the endpoint is given up, and
    JournalError for an answer that cannot be saved.
    """
    hung = _hang_detector(session, able, client)
    await asyncio.to_thread(_keep_prompts, session, able)  # A signal must get through meanwhile.
    for w in able:
        if is_mutable(w.prepared.task.name):
            pending = [w.accumulator.samples[i] for i in w.list_pending_samples()]
            note_asked(session.folder, w.prepared.task, pending, session.endpoint.info.version)
    journals = {w.prepared.task.name: w.journal for w in able}
    async with (
        note_servers_from_files(client, journals, session.folder, session.warnings.append),
        note_servers(client, journals, session.folder),
        note_named_servers(client, journals, session.folder),
    ):
        await _ask_and_note_load(session, able, client, hung, participant)


def _keep_prompts(session: RunSession, able: Sequence[TaskRun]) -> None:
    """Write the prompts of the tasks into the folder, unless an earlier session did.

    Their small media are kept too. The samples of mutable tasks differ from session to session.
    """
    mask = SecretMask(session.plan.connection, session.environ)
    for w in able:
        task = w.prepared.task.name
        if is_mutable(task) or not has_prompts(session.folder, task):
            samples, texts = w.prepared.dataset.samples, not session.plan.no_prompts
            write_prompts(session.folder, task, samples, mask, texts=texts)
            if texts and not session.plan.no_media and MEDIA_NEEDS & w.prepared.needs:
                keep_media(session.folder, samples)


def _hang_detector(
    session: RunSession, able: Sequence[TaskRun], client: Client
) -> HangDetector | None:
    """Return a detector for a hung endpoint, with requests like those of the first task."""
    first = next((w.prepared for w in able if w.unfinished), None)
    if first is None:
        return None
    return watch_for_hung(
        session.plan, first, session.endpoint, client, session.environ, session.notify
    )


async def _ask_and_note_load(
    session: RunSession,
    tasks: Sequence[TaskRun],
    client: Client,
    hang_detector: HangDetector | None,
    participant: Participant | None,
) -> None:
    """Ask the tasks. Note the engine's load in the folder, even if it is stopped."""
    folder = session.folder
    if client.retry_budget is None:
        missing = sum(len(w.accumulator.samples) - w.accumulator.scored for w in tasks)
        client.retry_budget = max(LEAST_RETRY_BUDGET, missing // 4)
    load = LoadSession(
        client,
        order_seed=session.seeds.samples,
        at_first=partial(drop_report, folder),
        hang_detector=hang_detector,
        proofs=session.proofs,
        notify=session.notify,
        cut_off=session.cut_off,
        budget=open_budget(session, tasks, None if participant is None else participant.budgets),
        certainty=_watch_certainty(session),
    )
    limits = [session.plan.limits, *(earlier.limits for earlier in session.noted.loads())]
    try:
        await _ask_twice(session, tasks, load, limits, participant)
        settle_scores(tasks)
    except BaseException:
        with suppress(ServeEvalError, OSError):  # Report the error that ended the run instead.
            _note(session, load, client)
        raise
    _note(session, load, client)


def _watch_certainty(session: RunSession) -> CertaintyWatch | None:
    """Return what ends the run once a FAIL is certain, if the plan or the suite wants that."""
    if not ends_when_certain(session):
        return None
    from serve_eval.evaluation.certain_fail import CertainFail

    return CertainFail(session)


def _note(session: RunSession, load: LoadSession, client: Client) -> None:
    """Note the load of a session, and what its answers showed of the model's thoughts."""
    session.noted.note_load(load.load())
    if client.thoughts.seen != ThoughtsSeen():
        session.noted.note_thoughts(client.thoughts.seen)


async def _ask_twice(
    session: RunSession,
    tasks: Sequence[TaskRun],
    load: LoadSession,
    limits: Sequence[Limits],
    participant: Participant | None,
) -> None:
    """Ask what has no answer, then repeat once the failures that may have been temporary."""
    answered = sum(w.accumulator.scored for w in tasks)
    planned = sum(len(w.accumulator.samples) for w in tasks)
    watch = CircuitBreaker(
        answered=answered, planned=planned, max_error_rate=session.plan.limits.max_error_rate
    )
    lanes = [_lane(session, w, limits, participant) for w in tasks]
    if participant is not None:
        await participant.take((one.name, i) for one in lanes for i in one.positions)
    await ask(load, lanes, progress=session.progress, watch=watch)
    if participant is not None:
        await participant.leave()  # Each run repeats its failures on its own.
    await ask(load, [_once_more(w) for w in tasks if not w.spared], progress=session.progress)


def _lane(
    session: RunSession,
    task_run: TaskRun,
    limits: Sequence[Limits],
    participant: Participant | None,
) -> Lane:
    """Return the lane of a task.

    `limits` are those of all sessions: they determine if its order was random.
    """
    meet = None if participant is None else partial(participant.meet, task_run.prepared.task.name)
    looked_at = run_folder.read_looks(session.folder)
    planned = random_order(task_run, session.seeds, limits, looked_at)
    alarm = (
        None
        if planned is None
        else DegradationAlarm(
            task_run.accumulator,
            planned,
            session.notify,
            task_run.prepared.expected,
            courses=session.plan.courses,
        )
    )
    return Lane(
        task_run.prepared.task.name,
        task_run.accumulator,
        task_run.journal,
        _positions(session, task_run),
        task_run.early,
        meet,
        alarm,
        iter(()) if task_run.journal.empty else _withdrawn(task_run),
    )


def _withdrawn(task_run: TaskRun) -> Iterator[int]:
    """Yield the samples of which an answer was withdrawn, in this or an earlier session."""
    if not (gone := withdrawals(task_run.journal.path)):
        return iter(())
    return (i for i, one in enumerate(task_run.accumulator.samples) if one.id in gone)


def _positions(session: RunSession, task_run: TaskRun) -> Sequence[int]:
    """Return the samples of a task that are to be asked, in the order of their starts."""
    if not task_run.unfinished:
        return ()  # Some of its answers may turn out to belong to other requests.
    if task_run.early is None:
        seed = task_seed(session.seeds.samples, task_run.prepared.task.name)
        return arrange(
            task_run.accumulator.samples,
            task_run.list_pending_samples(),
            "natural" if session.plan.limits.pace == "recorded" else session.plan.limits.order,
            seed,
            task_run.prepared.part,
        )
    return array("q", (i for i in task_run.early.order if task_run.accumulator.score(i) is None))


def _once_more(task_run: TaskRun) -> Lane:
    """Return the lane of the samples whose failure may have been temporary."""
    worth = task_run.accumulator.worth_another_pass()
    again = array("q", (i for i in worth if i not in task_run.standing))
    return Lane(
        f"{task_run.prepared.task.name}, the failed once more",
        task_run.accumulator,
        task_run.journal,
        again,
        alone=_withdrawn(task_run) if again else (),
    )


async def ask_again(session: RunSession, client: Client) -> None:
    """Ask prompts again and note in the folder how many answers differ.

    Nothing is asked if the plan expects no such answers, or if the run repeats its prompts anyway.
    """
    if not wants_again(session) or session.noted.loads()[-1].ended_by:
        return
    session.notify("asking prompts again: the plan expects that answers repeat")
    limit = session.plan.limits.concurrency
    found = await compare_again(
        session.tasks,
        client,
        seed=session.seeds.samples,
        in_flight=limit if isinstance(limit, int) else None,
    )
    if found is not None:
        session.noted.note_repeated(found)


def wants_again(session: RunSession) -> bool:
    """Return True if prompts are to be asked again, and no session did."""
    plan = session.plan
    if not plan.expect.get(PathClaim.DETERMINISTIC) or plan.integration_test:
        return False
    tasks = [one.prepared.task for one in session.tasks if may_compare(one.prepared.task)]
    if not tasks or any(plan.times(task.name) > 1 for task in tasks):
        return False
    return all(one.repeated is None for one in session.noted.read())


@contextmanager
def note_cut_off(session: RunSession) -> Iterator[None]:
    """Write a failure for each sample in flight if a server ends or hangs within the block.

    A later session asks these samples again. Without the record, a server that ends with its bad
    answers would leave no trace of them. What the user stops loses nothing.
    """
    try:
        yield
    except (ServerEndedError, LaunchError):
        now = time.time()
        lost = Attempt(
            start_s=now,
            end_s=now,
            failure=FailureKind.DISCONNECTED,
            status=None,
            request_id="",
            lost=LostAnswer.RESTART,
        )
        told = "the server ended while the request was in flight"
        failure = Failure(kind=FailureKind.DISCONNECTED, message=told, attempts=(lost,))
        with suppress(JournalError):  # report the end of the server instead
            for lane, i in session.cut_off:
                if lane.accumulator.score(i) is None:
                    lane.keep(lane.accumulator.samples[i], failure)
        raise


GROWTH, LATER_GROWTH, LATER = 0.02, 0.1, 4000
"""Share of additional samples that triggers another look: GROWTH, and LATER_GROWTH from LATER
samples on. Small runs are warned early. In long runs, looks take longer, and even a small share
is many samples."""


class DegradationAlarm:
    """Watch a task whose samples start in the random order `planned`, over one or several sessions.

    `notify` receives one line for each measure that gets worse. `expected` defines bad scores. It
    is None without a reference. All `courses` of a run share the probability of a false alarm.
    """

    def __init__(
        self,
        accumulator: ScoreAccumulator,
        planned: Sequence[int],
        notify: Callable[[str], None],
        expected: Expected | None = None,
        *,
        courses: int = 1,
    ) -> None:
        self._courses = courses
        self._accumulator, self._planned, self._notify, self._expected = (
            accumulator,
            planned,
            notify,
            expected,
        )
        self._known: set[str] = set()
        self.restart()

    def restart(self) -> None:
        """Start again from the first sample, because answers were withdrawn."""
        self._search = _Search(self._accumulator, self._planned, self._expected, self._courses)
        self._came = 0

    async def look(self) -> None:
        """Examine the finished samples in a thread, if there are enough new ones."""
        accumulator, search, came = (
            self._accumulator,
            self._search,
            self._accumulator.scored + self._accumulator.failed,
        )
        if came == self._came:
            return
        self._came = came
        worse = await asyncio.to_thread(search.go_on, self._known)
        if search is not self._search:  # answers were withdrawn meanwhile
            return
        for one in worse:
            if one.measure not in self._known:
                self._known.add(one.measure)
                self._notify(
                    f"warning: {accumulator.task.name}:"
                    f" {describe_so_far(one, len(accumulator.samples))}"
                )


class _Search:
    """One search through a task, from its first sample."""

    def __init__(
        self,
        accumulator: ScoreAccumulator,
        planned: Sequence[int],
        expected: Expected | None,
        courses: int,
    ) -> None:
        self._accumulator, self._planned, self._expected = accumulator, planned, expected
        self._courses = courses
        self._lookout = Lookout(
            accumulator.task.metric, len(accumulator.samples), expected, courses=courses
        )
        self._finished = self._looked_at = self._taken = 0

    def go_on(self, known: Set[str]) -> tuple[Degradation, ...]:
        """Return what got worse if a measure that is not `known` did so since the last look."""
        accumulator, metric, planned = (
            self._accumulator,
            self._accumulator.task.metric,
            len(self._accumulator.samples),
        )
        self._finished = end = accumulator.count_completed(self._planned, self._finished)
        growth = GROWTH if self._looked_at < LATER else LATER_GROWTH
        if not end or end < (1.0 + growth) * self._looked_at:
            return ()
        self._looked_at = end
        part = accumulator.course(self._planned[self._taken : end])
        if not self._taken and len(part.values) < min(FIRST, planned):
            return ()
        self._taken = end
        if not self._lookout.extend(part, known):
            return ()
        return degradations(
            accumulator.course(self._planned[:end]),
            metric,
            planned,
            self._expected,
            courses=self._courses,
        )
