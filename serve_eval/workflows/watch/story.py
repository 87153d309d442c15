"""The story of a watch: round after round, until it is told to end or an alarm ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.checks.run import choose_checks
from serve_eval.errors import EndpointError
from serve_eval.evaluation.results.scoring import ScoringProcesses
from serve_eval.evaluation.run_session import ignore
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.task_run import open_scoring
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.watch import judging, record
from serve_eval.workflows.watch.alarming import deliver
from serve_eval.workflows.watch.asking import ask_round
from serve_eval.workflows.watch.beginning import LEAST_PROMPTS, begin
from serve_eval.workflows.watch.budget import checks_of
from serve_eval.workflows.watch.job import WatchJob, WatchSession
from serve_eval.workflows.watch.record import Seen, WatchAlarm
from serve_eval.workflows.watch.text import describe_unjudged, line

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
    """Watch an endpoint. Returns the exit code: FAIL where an alarm stands at the end.

    `forget` drops the alarms of before, and the evidence. `notify` gets the lines for the user,
    `ready` is called when the endpoint was found to be there or the watch was known already. Raises
    EndpointError where it is not there at the start of a new watch, RunFolderError for the folder
    of another one, JournalError for a full disk.
    """
    prepared = [job.pool.prepared] if job.pool is not None and job.pool.prepared is not None else []
    with (
        run_folder.hold(folder, record.STATE_FILE, "watch"),
        open_scoring(job.plan, prepared) as scoring,
    ):
        session = await _open(job, folder, scoring, environ, metrics, notify)
        _catch_up(session, forget=forget)
        ready()
        await _deliver(session)
        if _stands(session):
            return FAIL
        try:
            return await _watch_rounds(session)
        finally:
            if (last := describe_unjudged(session.state, job.rules)) is not None:
                notify(last)


async def _open(
    job: WatchJob,
    folder: Path,
    scoring: ScoringProcesses,
    environ: Mapping[str, str],
    metrics: Metrics | None,
    notify: Callable[[str], None],
) -> WatchSession:
    """Find out what the watch knows and asks."""
    state, asked = await begin(job, folder, environ)
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
    """Judge the rounds that the state does not know yet, and forget alarms and evidence where that
    is wanted.
    """
    state, rules = session.state, session.job.rules
    for seen in record.later_than(session.folder, state.rounds):
        judging.judge(state, seen, rules)
    if forget:
        state.alarms, state.bets, state.silent = [], {}, 0
    record.save(session.folder, state)
    if session.metrics is not None:
        session.metrics.state(state, rules)


def _stands(session: WatchSession) -> bool:
    """Tell whether an alarm of before ends the watch, and say so."""
    final = [alarm for alarm in session.state.standing if alarm.kind in judging.ALPHA]
    if not session.job.ends or not final:
        return False
    for alarm in final:
        session.notify(f"the alarm of round {alarm.round} stands: {alarm.told}")
    session.notify("When it is mended: the same command with --forget-alarms")
    return True


async def _watch_rounds(session: WatchSession) -> int:
    """Make rounds until the last one, or until an alarm ends the watch. Returns the exit code.

    Raises EndpointError when too few prompts are left.
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
                f"{len(state.dropped)} of {len(state.answers)} prompts have no answer time and"
                f" again: {seen.first_failure}",
                hint="Watch another task, or a new folder when it is mended.",
            )
        if (new and job.ends) or done == job.rounds:
            return FAIL if state.standing else PASS
        await asyncio.sleep(max(0.0, began + job.every_s - time.monotonic()))


def _judge_round(session: WatchSession, seen: Seen) -> list[WatchAlarm]:
    """Keep a round, judge it, and say what it came to. Returns the new alarms."""
    job, state = session.job, session.state
    record.append(session.folder, seen)
    learning = state.accuracy is None
    new = judging.judge(state, seen, job.rules)
    record.save(session.folder, state)
    if session.metrics is not None:
        session.metrics.round(seen, [alarm.kind for alarm in new])
        session.metrics.state(state, job.rules)
    session.notify(line(state, seen, job.rules))
    if learning and judging.blind(state, job.rules):
        session.notify(
            "warning: too few answers are right for any fall to be noticed: watch another task"
        )
    for alarm in new:
        session.notify(f"ALARM {alarm.name}: {alarm.told}")
    return new


async def _deliver(session: WatchSession) -> None:
    """Give every alarm away that has not been given yet, each once."""
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
    """Return an alarm as others get it."""
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
    return {"tool": "serve-eval watch", **kept, "task": task, **about}
