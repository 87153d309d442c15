"""Describe a watch for CI systems: a case for each standing alarm, else one that passed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.report.ci.ci_result import (
    CiCase,
    CiResult,
    CiState,
    CiSuite,
    CiTable,
    withhold_cases,
)
from serve_eval.report.one_line import OneLine, lead
from serve_eval.schema import REHEARSED
from serve_eval.workflows.watch import record
from serve_eval.workflows.watch.job import WatchJob
from serve_eval.workflows.watch.record import Seen, WatchAlarm
from serve_eval.workflows.watch.record import State as WatchState

BROKEN = ("failures", "down")
"""Kinds of alarms that are about the endpoint's answering, not about its answers."""


def read_watch_ci(job: WatchJob, folder: Path) -> CiResult:
    """Return the result of the watch in a folder. Raises RunFolderError if it cannot be read."""
    state = record.load(folder, job.bound)
    if state is None:
        raise RunFolderError(f"{folder} holds no watch")
    return describe_watch(state, record.later_than(folder, 0), job.base_url)


def describe_watch(state: WatchState, rounds: Sequence[Seen], base_url: str) -> CiResult:
    """Return the result of a watch. One that still learns its baseline is skipped."""
    failures = sum(sum(seen.failures.values()) for seen in rounds)
    asked = sum(len(seen.asked) for seen in rounds)
    counts = f"{state.rounds} rounds, {asked:,} asked, {failures} failed"
    alarms = [
        replace(make_alarm_line(alarm, state.model, base_url), counts=counts)
        for alarm in state.standing
    ]
    led = lead(alarms, range(len(alarms)), "alarms")
    calm = _describe_calm(state, base_url, counts)
    cases = list(map(_describe_alarm, state.standing, led)) or [calm]
    if state.rehearsal:
        cases = withhold_cases(cases)
    return CiResult(
        notice=REHEARSED if state.rehearsal else "",
        title=f"serve-eval watch {base_url}",
        outcome=_name_outcome(state),
        suites=[CiSuite(name="serve-eval watch", cases=cases, host=base_url)],
        table=CiTable(
            columns=("state", "alarm", "round", "told"),
            rows=[
                ["over" if one.over else "stands", one.name, str(one.round), one.told]
                for one in state.alarms
            ],
        ),
        notes=[f"{state.rounds} rounds; {asked} requests, {failures} of them failed"],
        line=cases[0].line,
    )


def _name_outcome(state: WatchState) -> str:
    if state.standing:
        return "ALARM"
    if state.rehearsal:
        return "INCONCLUSIVE"
    return "BASELINE" if state.accuracy is None else "NO ALARM"


def make_alarm_line(alarm: WatchAlarm, model: str | None, base_url: str) -> OneLine:
    """Return the line about an alarm. Its words have the figures and the likeliest cause."""
    about = " ".join(filter(None, (alarm.name, model, f"at {base_url}")))
    return OneLine(outcome="ALARM", about=about, cause=alarm.told, sure=True)


def _describe_alarm(alarm: WatchAlarm, line: OneLine) -> CiCase:
    return CiCase(
        group="watch",
        name=alarm.name,
        state=CiState.ERROR if alarm.kind in BROKEN else CiState.FAILURE,
        line=line,
        details=[alarm.told, f"round {alarm.round}, {alarm.at}"],
        properties={name: f"{value:g}" for name, value in alarm.figures.items()},
    )


def _describe_calm(state: WatchState, base_url: str, counts: str) -> CiCase:
    """Return the case of a watch without a standing alarm."""
    line = OneLine(
        outcome="NO ALARM",
        about=" ".join(filter(None, ("watch", state.model, f"at {base_url}"))),
        counts=counts,
    )
    if state.accuracy is None:
        told = f"the baseline is not complete after {state.rounds} rounds"
        line = replace(line, outcome="BASELINE", cause=told, sure=True)
        return CiCase(group="watch", name="accuracy", state=CiState.SKIPPED, line=line)
    line = replace(line, outcome=_name_outcome(state))
    line = replace(line, figures=f"baseline {state.accuracy.mean:.1%}")
    return CiCase(group="watch", name="accuracy", state=CiState.PASSED, line=line)
