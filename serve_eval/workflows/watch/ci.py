"""Describe a watch for CI systems: a case for each standing alarm, else one that passed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.workflows.watch import record
from serve_eval.workflows.watch.job import WatchJob
from serve_eval.workflows.watch.record import Seen, WatchAlarm
from serve_eval.workflows.watch.record import State as WatchState

_BROKEN = ("failures", "down")
"""Kinds of alarms that are about the endpoint's answering, not about its answers."""


def read_watch_ci(job: WatchJob, folder: Path) -> CiResult:
    """Return the result of the watch in a folder. Raises RunFolderError if it cannot be read."""
    state = record.load(folder, job.bound)
    if state is None:
        raise RunFolderError(f"{folder} holds no watch")
    return describe_watch(state, record.later_than(folder, 0), job.base_url)


def describe_watch(state: WatchState, rounds: Sequence[Seen], base_url: str) -> CiResult:
    """Return the result of a watch. One that still learns its baseline is skipped."""
    cases = [_describe_alarm(alarm) for alarm in state.standing] or [_describe_calm(state)]
    failures = sum(sum(seen.failures.values()) for seen in rounds)
    asked = sum(len(seen.asked) for seen in rounds)
    return CiResult(
        title=f"serve-eval watch {base_url}",
        outcome="ALARM" if state.standing else "BASELINE" if state.accuracy is None else "NO ALARM",
        suites=[CiSuite(name="serve-eval watch", cases=cases, host=base_url)],
        table=CiTable(
            columns=("state", "alarm", "round", "told"),
            rows=[
                ["over" if one.over else "stands", one.name, str(one.round), one.told]
                for one in state.alarms
            ],
        ),
        notes=[f"{state.rounds} rounds; {asked} requests, {failures} of them failed"],
    )


def _describe_alarm(alarm: WatchAlarm) -> CiCase:
    return CiCase(
        group="watch",
        name=alarm.name,
        state=CiState.ERROR if alarm.kind in _BROKEN else CiState.FAILURE,
        message=alarm.told,
        details=[f"round {alarm.round}, {alarm.at}"],
        properties={name: f"{value:g}" for name, value in alarm.figures.items()},
    )


def _describe_calm(state: WatchState) -> CiCase:
    """Return the case of a watch without a standing alarm."""
    if state.accuracy is None:
        told = f"the baseline is not complete after {state.rounds} rounds"
        return CiCase(group="watch", name="accuracy", state=CiState.SKIPPED, message=told)
    return CiCase(group="watch", name="accuracy", state=CiState.PASSED, message="no alarm")
