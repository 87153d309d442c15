"""Run the rounds of a watch until the user or an alarm ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.checks.run import choose_checks
from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError
from serve_eval.evaluation.results.scoring import ScoringProcesses
from serve_eval.evaluation.run_session import ignore
from serve_eval.evaluation.task_run import open_scoring
from serve_eval.report.ci_result import write_line
from serve_eval.schema import REHEARSED, Endpoint
from serve_eval.storage import run_folder
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.watch import bets, judging, record
from serve_eval.workflows.watch.alarming import BROKEN, deliver, make_alarm_line
from serve_eval.workflows.watch.asking import ask_round, checks_of
from serve_eval.workflows.watch.document import line, say_gap
from serve_eval.workflows.watch.job import LEAST_PROMPTS, WatchJob, WatchSession, begin
from serve_eval.workflows.watch.probes import forget_probes, warn_once
from serve_eval.workflows.watch.record import Seen, State, WatchAlarm

if TYPE_CHECKING:
    from serve_eval.workflows.watch.metrics import Metrics

__all__ = ["LEAST_PROMPTS", "WatchJob", "watch"]


async def watch(
    job: WatchJob,
    folder: Path,
    *,
    environ: Mapping[str, str],
    metrics: Metrics | None = None,
    forget: bool = False,
    notify: Callable[[str], None] = ignore,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Watch an endpoint. Returns the exit code: FAIL if an alarm is active at the end.

    `forget` drops earlier alarms and the evidence. `notify` receives the lines for the user.
    `ready` is called once the endpoint has responded, or immediately if the folder has a state.
    Raises EndpointError if the endpoint does not respond at the start of a new watch,
    RunFolderError if the folder belongs to another watch, and JournalError if the disk is full.
    """
    prepared = [job.pool.prepared] if job.pool is not None and job.pool.prepared is not None else []
    with (
        run_folder.hold(folder, record.STATE_FILE, "watch"),
        open_scoring(job.plan, prepared) as scoring,
    ):
        session = await _open(job, folder, scoring, environ, metrics, notify)
        if session.state.rehearsal:
            notify(REHEARSED)
        _catch_up(session, forget=forget)
        ready()
        await _deliver(session)
        if _stands(session):
            return choose_exit_code(session.state)
        return await _watch_rounds(session)


async def _open(
    job: WatchJob,
    folder: Path,
    scoring: ScoringProcesses,
    environ: Mapping[str, str],
    metrics: Metrics | None,
    notify: Callable[[str], None],
) -> WatchSession:
    """Return the session, with the state and the questions of the watch."""
    state, asked = await begin(job, folder, environ)
    endpoint = Endpoint(base_url=job.base_url, model=state.model)
    async with connect(job.limit(job.plan), endpoint, environ) as client:
        state.rehearsal = state.rehearsal or await client.is_stand_in()
    return WatchSession(
        job=job,
        plan=job.limit(replace(job.plan, model=state.model)),
        folder=folder,
        state=state,
        pool=asked,
        checks=checks_of(choose_checks("quick")) if job.smoke else [],
        scoring=scoring,
        environ=environ,
        metrics=metrics,
        notify=notify,
    )


def _catch_up(session: WatchSession, *, forget: bool) -> None:
    """Judge the rounds that the state lacks. With `forget`, drop alarms and evidence."""
    state, rules = session.state, session.job.rules
    for seen in record.later_than(session.folder, state.rounds):
        judging.judge(state, seen, rules)
    if forget:
        state.alarms, state.bets, state.silent = [], {}, 0
        if state.probes is not None:
            state.probes = forget_probes(state.probes)
    record.save(session.folder, state)
    if session.metrics is not None:
        session.metrics.state(state, rules)


def _stands(session: WatchSession) -> bool:
    """Return True, with a message, if an earlier alarm ends the watch."""
    final = [alarm for alarm in session.state.standing if alarm.kind in bets.levels(session.state)]
    if not session.job.ends or not final:
        return False
    for alarm in final:
        session.notify(f"the alarm of round {alarm.round} is still active: {alarm.told}")
    return True


def choose_exit_code(state: State) -> int:
    """Return FAIL for an active alarm; in a rehearsal only if the endpoint did not answer."""
    counted = [one for one in state.standing if not state.rehearsal or one.kind in BROKEN]
    return FAIL if counted else PASS


async def _watch_rounds(session: WatchSession) -> int:
    """Run rounds until the last one, or until an alarm ends the watch. Returns the exit code.

    Raises EndpointError if too few prompts are left.
    """
    job, state = session.job, session.state
    done = 0
    while True:
        began = time.monotonic()
        seen = await ask_round(session)
        new = _judge_round(session, seen)
        await _deliver(session)
        done += 1
        if len(state.answers) - len(state.dropped) < LEAST_PROMPTS:
            raise EndpointError(
                f"{len(state.dropped)} of {len(state.answers)} prompts repeatedly get no answer:"
                f" {seen.first_failure}",
                hint="Watch another task, or fix the cause and use a new folder.",
            )
        if (new and job.ends) or done == job.rounds:
            return choose_exit_code(state)
        await asyncio.sleep(max(0.0, began + job.every_s - time.monotonic()))


def _judge_round(session: WatchSession, seen: Seen) -> list[WatchAlarm]:
    """Store, judge and print a round. Returns the new alarms."""
    job, state = session.job, session.state
    record.append(session.folder, seen)
    learning = state.accuracy is None
    new = judging.judge(state, seen, job.rules)
    salted = job.reference is not None and job.reference.known.salted
    warnings = list(warn_once(state, seen, salted=salted))
    record.save(session.folder, state)
    if session.metrics is not None:
        session.metrics.round(seen, [alarm.kind for alarm in new])
        session.metrics.state(state, job.rules)
    session.notify(line(state, seen, job.rules))
    if learning and judging.blind(state, job.rules):
        session.notify("warning: too few answers are right to notice a fall; watch another task")
    if learning and state.accuracy is not None and (gap := say_gap(state, job.rules)):
        session.notify(f"note: {gap}")
    for warning in warnings:
        session.notify(warning)
    for alarm in new:
        session.notify(f"ALARM {alarm.name}: {alarm.told}")
    return new


async def _deliver(session: WatchSession) -> None:
    """Deliver each alarm that has not been delivered yet."""
    job, state = session.job, session.state
    for alarm in state.alarms:
        if alarm.delivered:
            continue
        told = _show(alarm, session)
        results = await deliver(
            job.delivery, told, job.plan.connection, session.environ, session.notify
        )
        alarm.delivered = True
        record.save(session.folder, state)
        if session.metrics is not None:
            session.metrics.count_deliveries(results)


def _show(alarm: WatchAlarm, session: WatchSession) -> dict[str, object]:
    """Return an alarm as the command and the webhook receive it."""
    job = session.job
    about = {
        "base_url": job.base_url,
        "model": session.state.model,
        "folder": str(session.folder.absolute()),
    }
    task = job.pool.task.name if job.pool is not None else "questions"
    kept = {
        name: getattr(alarm, name) for name in ("kind", "subject", "round", "at", "told", "figures")
    }
    said = make_alarm_line(alarm, session.state.model, job.base_url)
    rehearsal = session.state.rehearsal
    notice = REHEARSED if rehearsal else ""
    text = write_line(replace(said, place=str(session.folder), notice=notice))
    marked = {"rehearsal": True} if rehearsal else {}
    return {"tool": "serve-eval watch", "text": text, **marked, **kept, "task": task, **about}
