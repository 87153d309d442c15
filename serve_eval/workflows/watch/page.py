"""Make the page of a watch from the files in its folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from serve_eval import __version__
from serve_eval.errors import RunFolderError
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Fact,
    PageContent,
    PictureSection,
    Section,
    State,
)
from serve_eval.report.pictures import (
    Picture,
    TrendBand,
    TrendPoint,
    draw_distribution,
    draw_trend,
)
from serve_eval.schema import REHEARSED
from serve_eval.workflows.watch import record
from serve_eval.workflows.watch.job import WatchJob
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.record import Seen
from serve_eval.workflows.watch.record import State as WatchState
from serve_eval.workflows.watch.text import line, say_gap

MOST_ROUNDS = 500
"""Rounds that are drawn and listed: the latest ones."""


def read_watch_page(job: WatchJob, folder: Path) -> PageContent:
    """Return the page of the watch in a folder. Raises RunFolderError if it cannot be read."""
    state = record.load(folder, job.bound)
    if state is None:
        raise RunFolderError(f"{folder} holds no watch")
    return make_watch_page(state, record.later_than(folder, 0), job.rules, job.base_url)


def make_watch_page(
    state: WatchState, rounds: Sequence[Seen], rules: WatchRules, base_url: str
) -> PageContent:
    """Return the page of a watch. `rounds` are all of its rounds, oldest first."""
    standing = state.standing
    colour: State = "fail" if standing else "pass" if state.accuracy is not None else "none"
    badge = "ALARM" if standing else "NO ALARM" if state.accuracy is not None else "BASELINE"
    learnt = state.accuracy
    told = "; ".join(alarm.told for alarm in standing)
    headline = told or (line(state, rounds[-1], rules) if rounds else "no round yet")
    rows = [Fact(label="endpoint", text=base_url), Fact(label="model", text=state.model)]
    if learnt is not None:
        floor = learnt.floor - rules.tolerance
        rows.append(Fact(label="baseline", text=f"{learnt.mean:.1%}, alarm if below {floor:.1%}"))
        if (gap := say_gap(state, rules)) is not None:
            rows.append(Fact(label="not known", text=gap))
    return PageContent(
        notice=REHEARSED if state.rehearsal else "",
        kind="watch",
        title=f"watch: {badge} {base_url}",
        heading=base_url,
        state=colour,
        badge=badge,
        headline=headline,
        rows=rows,
        sections=tuple(_list_sections(state, rounds[-MOST_ROUNDS:], rules)),
        foot=f"serve-eval {__version__}",
    )


def _list_sections(
    state: WatchState, rounds: Sequence[Seen], rules: WatchRules
) -> Iterator[Section]:
    if state.alarms:
        yield _tabulate_alarms(state)
    if pictures := [one for one in _draw(state, rounds, rules) if one is not None]:
        yield PictureSection(title="Rounds", pictures=pictures)
    if rounds:
        yield _tabulate_rounds(rounds)


def _tabulate_rounds(rounds: Sequence[Seen]) -> DataTable:
    names = ("round", "began (UTC)", "asked", "answered", "accuracy", "failures", "tokens")
    columns = [DataColumn(name=name, number=i > 1) for i, name in enumerate(names)]
    rows = []
    for seen in reversed(rounds):
        mean = _mean(seen)
        failures = sum(seen.failures.values())
        rows.append(
            [
                DataCell(text=str(seen.round), order=float(seen.round)),
                DataCell(text=seen.started_at[:19].replace("T", " ")),
                DataCell(text=str(len(seen.asked)), order=float(len(seen.asked))),
                DataCell(text=str(seen.came), order=float(seen.came)),
                DataCell(text="-" if mean is None else f"{mean:.1%}", order=mean),
                DataCell(text=str(failures), order=float(failures)),
                DataCell(text=f"{seen.tokens:,}", order=float(seen.tokens)),
            ]
        )
    return DataTable(title="All rounds", columns=columns, rows=rows, caption="The latest first.")


def _tabulate_alarms(state: WatchState) -> DataTable:
    columns = [DataColumn(name=name) for name in ("alarm", "round", "at", "state", "finding")]
    rows = [
        [
            DataCell(text=alarm.name),
            DataCell(text=str(alarm.round), order=float(alarm.round)),
            DataCell(text=alarm.at[:19].replace("T", " ")),
            DataCell(
                text="over" if alarm.over else "active", state="none" if alarm.over else "fail"
            ),
            DataCell(text=alarm.told),
        ]
        for alarm in reversed(state.alarms)
    ]
    return DataTable(title="Alarms", columns=columns, rows=rows, caption="The latest first.")


def _draw(state: WatchState, rounds: Sequence[Seen], rules: WatchRules) -> Iterator[Picture | None]:
    """Yield accuracy and failures over the rounds, if any failed, and the latencies."""
    alarmed = {alarm.round for alarm in state.alarms}
    learnt = state.accuracy
    band = None
    if learnt is not None:
        floor = 100.0 * (learnt.floor - rules.tolerance)
        band = TrendBand(
            reference=100.0 * learnt.mean, threshold=floor, names=("baseline", "alarm below")
        )
    yield draw_trend(
        "Accuracy of the answers of each round",
        [
            TrendPoint(at=_time(seen), value=100.0 * mean, alarm=seen.round in alarmed)
            for seen in rounds
            if (mean := _mean(seen)) is not None
        ],
        "points",
        band,
    )
    if any(seen.came < len(seen.asked) for seen in rounds):
        yield _draw_failures(rounds, alarmed)
    latencies = [value for seen in rounds for value in seen.latencies_s]
    yield draw_distribution("Latency of answers", {"all rounds": latencies}, "s")


def _draw_failures(rounds: Sequence[Seen], alarmed: set[int]) -> Picture | None:
    points = [
        TrendPoint(
            at=_time(seen),
            value=100.0 * (1.0 - seen.came / len(seen.asked)),
            alarm=seen.round in alarmed,
        )
        for seen in rounds
        if seen.asked
    ]
    return draw_trend("Requests without an answer", points, "% of the requests")


def _time(seen: Seen) -> datetime:
    return datetime.fromisoformat(seen.started_at)


def _mean(seen: Seen) -> float | None:
    known = [value for value in seen.values if value is not None]
    return sum(known) / len(known) if known else None
