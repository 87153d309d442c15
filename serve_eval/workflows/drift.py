"""Make the document of drift charts: which series decline, since when, and the runs of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement, make_header
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    PictureSection,
)
from serve_eval.report.summary.figures import count, span
from serve_eval.series.chart import (
    Chart,
    date,
    draw_sums,
    draw_values,
    find_alarm,
    find_decline,
    list_warnings,
)
from serve_eval.shell_words import quote_path
from serve_eval.stats.drift import RUNS, SLACK
from serve_eval.verdicts.exit_code import PASS

ALARM, NO_ALARM = "ALARM", "NO ALARM"
COLUMNS = ("began (UTC)", "value", "missing", "flips", "x", "z", "S", "alarm", "run")
COMMANDS, NOTES = 3, 2
"""Next commands, and notes of the first screen."""


def make_document(charts: Sequence[Chart], notes: Sequence[str], folder: Path) -> Document:
    """Return the document of the charts, those with an alarm first. An alarm fails nothing."""
    ordered = sorted(charts, key=lambda one: not one.points[-1].alarm)
    alarms = [one for one in ordered if one.points[-1].alarm]
    runs = sum(len(one.series.nights) for one in ordered)
    verb = "declines" if len(alarms) == 1 else "decline"
    told = f"{len(alarms)} of {len(ordered)} series {verb}; {count(runs, 'run')}"
    names = _name_series(ordered)
    pairs = list(zip(ordered, names, strict=True))
    return Document(
        "drift",
        f"serve-eval runs trend {quote_path(folder)}",
        make_header(PASS),
        noun="series",
        counted_as=told if len(ordered) > 1 else "",
        conclusions=[_conclude(*pair) for pair in pairs],
        overview=_list_series(ordered, names),
        statements=[
            Statement("note", line, depth=Depth.FIRST if i < NOTES else Depth.MORE)
            for i, line in enumerate(notes)
        ],
        warnings=[
            f"{name}: {line}" if len(ordered) > 1 else line
            for one, name in pairs
            for line in list_warnings(one)
        ],
        blocks=[
            Block(one, depth=Depth.PAGE if isinstance(one, PictureSection) else Depth.MORE)
            for one in _list_sections(ordered, names, folder)
        ],
        suites=[CiSuite("serve-eval runs trend", [_make_case(*pair) for pair in pairs])],
        commands=[line for one in alarms for line in _list_next(one)][:COMMANDS],
    )


def describe_charts(charts: Sequence[Chart], notes: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return all figures of the charts, which a command prints as the result."""
    series = list(map(_describe, charts))
    return {"schema_version": 1, "dir": str(folder), "series": series, "notes": list(notes)}


def _name_series(charts: Sequence[Chart]) -> list[str]:
    """Return the names of series, with their deployments and numbers where they are alike."""
    plain = [one.series.name for one in charts]
    names: list[str] = []
    for name, one in zip(plain, charts, strict=True):
        if plain.count(name) > 1 and one.series.deployment:
            name = f"{name}, {one.series.deployment}"
        same = sum(known == name or known.startswith(f"{name} #") for known in names)
        names.append(f"{name} #{same + 1}" if same else name)
    return names


def _conclude(one: Chart, name: str) -> Conclusion:
    """Return if a series declines. Its noise and its limit come with -v."""
    nights, last = one.series.nights, one.points[-1]
    rows = [("why", alarm)] if (alarm := find_alarm(one)) else []
    deeper = [
        (
            "noise",
            f"x is the {one.measure}; a run's standard deviation is {one.sd:.3f} points,"
            f" {one.noise.source}",
        ),
        (
            "limit",
            f"beyond h = {one.limit:g} an unchanged endpoint alarms within {RUNS} runs with a"
            f" chance of {one.false_alarm_chance:.2g} if its runs are independent"
            f" ({one.noise.known})",
        ),
    ]
    if len(nights) == 1:
        rows.append(("note", "one run only: nothing to compare it with yet"))
    return Conclusion(
        name,
        ALARM if last.alarm else NO_ALARM,
        figures=(
            f"{nights[-1].value:.3f} after {count(len(nights), 'run')} of {one.series.n} samples;"
            f" S {last.s:.2f}, alarm beyond {one.limit:g}"
        ),
        cause=alarm,
        statements=[
            *(Statement(label, text) for label, text in rows),
            *(Statement(label, text, depth=Depth.MORE) for label, text in deeper),
        ],
    )


def _make_case(one: Chart, name: str) -> CiCase:
    """Return the case of a series. An alarm is skipped: it fails nothing."""
    state = CiState.SKIPPED if one.points[-1].alarm else CiState.PASSED
    return CiCase("drift", name, state=state, message=find_alarm(one))


def _list_series(charts: Sequence[Chart], names: Sequence[str]) -> DataTable:
    rows = []
    for one, name in zip(charts, names, strict=True):
        nights, last = one.series.nights, one.points[-1]
        interval = nights[-1].interval
        value = f"{nights[-1].value:.3f}"
        since = "-"
        if last.alarm:
            since = f"{nights[find_decline(one)].started_at.astimezone(UTC):%Y-%m-%d}"
        cells = [
            DataCell(ALARM if last.alarm else NO_ALARM, state="fail" if last.alarm else "pass"),
            DataCell(name),
            DataCell(str(len(nights)), order=float(len(nights))),
            DataCell(value, order=nights[-1].value),
            DataCell("-" if interval is None else span(interval, one.series.metric)),
            DataCell(f"{last.s:.2f}", order=last.s),
            DataCell(f"{one.limit:g}", order=one.limit),
            DataCell(since),
        ]
        rows.append(cells)
    columns = [
        DataColumn("outcome"),
        DataColumn("series"),
        DataColumn("runs", number=True, spare=2),
        DataColumn("latest", number=True),
        DataColumn("95 %", number=True, spare=1),
        DataColumn("S", number=True, note="cumulative sum, in standard deviations of a run"),
        DataColumn("h", number=True, note="alarm beyond"),
        DataColumn("declines since"),
    ]
    return DataTable(
        "Series",
        columns=columns,
        rows=rows,
        caption="S is the decline as a cumulative sum, in standard deviations of a run; beyond h"
        " it is an alarm.",
    )


def _list_sections(
    charts: Sequence[Chart], names: Sequence[str], folder: Path
) -> Iterator[PictureSection | DataTable]:
    """Yield the values, the sums and the runs of each series."""
    for one, name in zip(charts, names, strict=True):
        title = f"{one.series.task}: value of each run"
        drawn = draw_values(one.series, one, title), draw_sums(one)
        if pictures := [picture for picture in drawn if picture is not None]:
            yield PictureSection(name, pictures)
        yield _list_runs(one, name, folder)


def _list_runs(one: Chart, name: str, folder: Path) -> DataTable:
    rows = []
    for night, x, flips, point in zip(one.series.nights, one.x, one.flips, one.points, strict=True):
        where = night.run.relative_to(folder) if night.run != folder else night.run.name
        numbers = (night.value, float(night.missing), flips, x, point.z, point.s)
        texts = (
            f"{night.value:.3f}",
            str(night.missing),
            "-" if flips is None else str(flips),
            f"{x:.3f}",
            f"{point.z:.2f}",
            f"{point.s:.2f}",
        )
        cells = [
            DataCell(text, order=None if number is None else float(number))
            for text, number in zip(texts, numbers, strict=True)
        ]
        alarm = DataCell(ALARM if point.alarm else "-", state="fail" if point.alarm else "none")
        rows.append([DataCell(date(night)), *cells, alarm, DataCell(str(where))])
    columns = [
        DataColumn(column, number=0 < i < 7, spare=int(column == "z"))
        for i, column in enumerate(COLUMNS)
    ]
    title = f"{name}: {count(len(rows), 'run')} of {one.series.n} samples"
    return DataTable(title, columns=columns, rows=rows, caption=f"x is the {one.measure}.")


def _list_next(one: Chart) -> list[str]:
    """Return how to see what changed: the last run against the one before the decline."""
    nights = one.series.nights
    before, last = (quote_path(nights[i].run) for i in (find_decline(one) - 1, -1))
    return [f"serve-eval compare {before} {last}", f"serve-eval diagnose {last}"]


def _describe(one: Chart) -> dict[str, Any]:
    series = one.series
    return {
        "task": series.task,
        "model": series.model,
        "spec": series.spec,
        "simulated": series.simulated,
        "fingerprint": series.fingerprint,
        "higher_is_better": series.metric.higher_is_better,
        "n": series.n,
        "measure": one.measure,
        "variance": one.noise.variance,
        "variance_from": one.noise.source,
        "dispersion": one.noise.dispersion,
        "sd": one.sd,
        "k": SLACK,
        "h": one.limit,
        "false_alarm": {
            "runs": RUNS,
            "chance": one.false_alarm_chance,
            "known_from": one.noise.known,
        },
        "alarm": one.points[-1].alarm,
        "warnings": one.warnings,
        "runs": [
            {
                "run": str(night.run),
                "started_at": night.started_at.isoformat(),
                "value": night.value,
                "missing": night.missing,
                "flips": flips,
                "x": x,
                "z": point.z,
                "s": point.s,
                "alarm": point.alarm,
            }
            for night, x, flips, point in zip(
                series.nights, one.x, one.flips, one.points, strict=True
            )
        ],
    }
