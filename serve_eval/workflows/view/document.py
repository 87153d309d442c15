"""Make the document of the runs of a folder: how each series ended, by how much, and since when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from serve_eval.report.ci_result import OneLine, lead
from serve_eval.report.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    make_header,
    make_page,
    rank_outcome,
)
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Fact,
    Facts,
    PageContent,
    PictureSection,
    Section,
    State,
    TextLines,
)
from serve_eval.report.pictures.picture import count
from serve_eval.report.summary.rows import describe_breakdown, describe_example
from serve_eval.series.chart import draw_values, find_alarm, find_decline
from serve_eval.shell_words import quote_path, quote_word
from serve_eval.storage.story_files import COMPARE
from serve_eval.verdicts.exit_code import PASS
from serve_eval.workflows.view.listing import (
    LEGEND,
    LETTERED,
    Links,
    draw_map,
    list_nights,
    tabulate_runs,
    write_letters,
)
from serve_eval.workflows.view.overview import (
    FAIL,
    UNJUDGED,
    Ending,
    FoundFolder,
    SeriesEnd,
    Trend,
    find_trends,
    say_failure,
    state_of,
)

ALARM, COMMANDS = "ALARM", 3
Row = tuple[SeriesEnd, Trend | None]
"""A series with its trend, if it has one."""
EXPLAINED, MOST_DRAWN = 5, 20
"""Series that the first screen explains, and series with a picture: those with the most runs."""
_WORDS: Final[Mapping[State, str]] = {
    "fail": "failed",
    "warn": "undecided",
    "pass": "passed",
    "none": "not judged",
}
"""The states of series, the worst first."""


def make_document(found: FoundFolder, *, served: bool = False, at: str = "") -> Document:
    """Return the document of a folder.

    `served`: a server answers its links to pages of two runs. `at` is the path from the page to
    the folder, if the page is elsewhere.
    """
    links = Links(folder=found.folder, served=served, at=at)
    trends = find_trends(found)
    told = [(one, _find_trend(one, trends)) for one in found.ends]
    told.sort(key=lambda pair: _rank(*pair))
    shown = [(one, trend) for one, trend in told if not _is_old(one)]
    conclusions = [
        _conclude(one, trend, links, depth=Depth.FIRST if i < EXPLAINED else Depth.MORE)
        for i, (one, trend) in enumerate(shown)
    ]
    counted = _count(found, [one for one, _ in shown])
    return Document(
        "view",
        f"serve-eval runs view {quote_path(found.folder)}",
        make_header(PASS),
        outcome=conclusions[0].outcome if conclusions else "NO RESULT",
        line=_lead(conclusions),
        conclusions=conclusions,
        counted_as=counted,
        noun="series",
        overview=_tabulate(shown, found.ends),
        statements=[
            *([] if conclusions else [Statement("note", counted)]),
            *(_describe_old(one) for one, _ in told if _is_old(one)),
        ],
        blocks=[
            Block(TextLines(count(len(lines), noun), lines))
            for noun, lines in (("warning", _list_warnings(told)), ("note", found.notes))
            if lines
        ],
        commands=list(islice(_list_next(found.folder, shown), COMMANDS)),
        make_page_blocks=lambda: _list_page_blocks(found, [one for one, _ in told], links),
        folds_overview=True,
    )


def _lead(conclusions: Sequence[Conclusion]) -> OneLine | None:
    """Return the line of the worst series, which counts the others."""
    lines = [
        OneLine(one.outcome, one.name, figures=one.figures, cause=one.cause, sure=True)
        for one in conclusions
    ]
    return next(iter(lead(lines, range(len(lines)), "series")), None)


def make_index(document: Document, folder: Path) -> PageContent:
    """Return the page of a document, under the name of its folder."""
    page = make_page(document)
    return replace(page, title=f"Runs of {folder.name or folder}", heading=str(folder))


def write_series(found: FoundFolder) -> bytes:
    """Return all endings of all series as JSON, which a command prints as its result."""
    series = [
        {
            "name": one.name,
            "outcome": one.outcome,
            "since": one.since.began,
            "endings": [
                {
                    "began": each.began,
                    "outcome": each.outcome,
                    "folder": str(each.folder),
                    "value": each.value,
                    "interval": each.interval,
                    "reference": each.against,
                    "drop": each.drop,
                }
                for each in one.endings
            ],
        }
        for one in found.ends
    ]
    return msgspec.json.encode(
        {
            "schema_version": 1,
            "dir": str(found.folder),
            "series": series,
            "warnings": [
                f"{one.series.name}: {line}" for one in found.trends for line in one.warnings
            ],
            "notes": found.notes,
        }
    )


def _list_warnings(told: Sequence[Row]) -> list[str]:
    """Return the warnings of all drift charts, those of the worst series first."""
    return [f"{one.name}: {line}" for one, trend in told if trend for line in trend.warnings]


def _find_trend(one: SeriesEnd, trends: Mapping[tuple[Path, str], Trend]) -> Trend | None:
    found = (trends.get((ending.folder, ending.task)) for ending in one.endings)
    return next((trend for trend in found if trend is not None), None)


def _rank(one: SeriesEnd, trend: Trend | None) -> tuple[bool, int, bool]:
    """Return the place of a series: the worst first, and last what was not judged.

    A failure that a later run answered comes after the others.
    """
    outcome = _name_outcome(one, trend)
    return outcome in UNJUDGED, rank_outcome(outcome), one.passed_after is not None


def _is_old(one: SeriesEnd) -> bool:
    """Return True for a command that ended without a result before the last night."""
    return bool(one.latest.cause) and one.latest.began < one.last_night


def _find_decline(one: SeriesEnd, trend: Trend | None) -> str:
    """Return the alarm of a series that does not fail, in words; "" without one."""
    if one.outcome == FAIL or trend is None or trend.charted is None:
        return ""
    return find_alarm(trend.charted)


def _name_outcome(one: SeriesEnd, trend: Trend | None) -> str:
    return ALARM if _find_decline(one, trend) else one.outcome


def _conclude(one: SeriesEnd, trend: Trend | None, links: Links, *, depth: Depth) -> Conclusion:
    """Return how a series ended, with its last failure, or with the alarm of its chart."""
    alarm = "" if trend is None or trend.charted is None else find_alarm(trend.charted)
    deciding, failed = one.deciding, one.outcome == FAIL
    cause, rows = deciding.cause or alarm, list[Statement]()
    if failed:
        cause = "; ".join(filter(None, (say_failure(one), _find_change(one, trend))))
    if cause:
        place = f" ({links.name(deciding.folder)})" if failed else ""
        state = state_of(_name_outcome(one, trend))
        href = links.to_page(deciding.folder)
        text = f"{cause}{place}"
        rows.append(Statement("why", text, state=state, href=href, depth=depth))
    if failed and alarm:
        rows.append(Statement("drift", alarm, state="warn", depth=Depth.MORE))
    if failed:
        rows += [
            Statement(label, text, depth=Depth.MORE) for label, text in _list_details(deciding)
        ]
    return Conclusion(
        one.name,
        _name_outcome(one, trend),
        figures=deciding.compared,
        cause=cause,
        statements=rows,
    )


def _find_change(one: SeriesEnd, trend: Trend | None) -> str:
    """Return the version of the endpoint that the first failure had, and no pass before it."""
    before, first = one.passed_before, one.failures[0]
    versions = {} if trend is None else {night.run: night.version for night in trend.series.nights}
    if before is None or not {before.folder, first.folder} <= versions.keys():
        return ""
    was, became = versions[before.folder], versions[first.folder]
    return "" if was == became else f"the endpoint's version was {was} before, and {became} then"


def _list_details(deciding: Ending) -> Iterator[tuple[str, str]]:
    """Yield the subjects of a task, the worst first, and a wrong answer."""
    if (task := deciding.summary) is not None:
        yield from describe_breakdown(task)
        if task.example is not None:
            yield "e.g.", describe_example(task.example, task.result.task)


def _describe_old(one: SeriesEnd) -> Statement:
    text = f"{one.name}: {one.latest.outcome}: {one.latest.cause}"
    return Statement("before", text, depth=Depth.MORE)


def _count(found: FoundFolder, shown: Sequence[SeriesEnd]) -> str:
    """Return how many series failed, are undecided, passed, and alarm, or have no result."""
    ended = [one for one in shown if not one.latest.cause]
    states = Counter(state_of(one.outcome) for one in ended)
    words = [f"{states[state]} {word}" for state, word in _WORDS.items() if states[state]]
    told = [f"{len(ended)} series{' and checks' if found.results else ''}: {', '.join(words)}"]
    if not ended:
        told = []
    if found.early:
        told.append(f"{found.early} ended without a result")
    alarms = sum(bool(one.charted and one.charted.points[-1].alarm) for one in found.trends)
    told.append(count(alarms, "drift alarm") if alarms else "no drift alarm")
    if found.rehearsals:
        told.append(f"{count(found.rehearsals, 'rehearsal')} not counted")
    newest = list_nights(found.ends, 1)
    return f"{newest[0]}: {'; '.join(told)}" if newest else "; ".join(told)


def _tabulate(shown: Sequence[Row], ends: Sequence[SeriesEnd]) -> DataTable:
    """Return the table of series: the verdicts of the last nights, the value, and since when."""
    nights = list_nights(ends, LETTERED)
    rows = []
    for one, trend in shown:
        outcome = _name_outcome(one, trend)
        deciding = one.deciding
        rows.append(
            [
                DataCell(outcome, state=state_of(outcome)),
                DataCell(one.name),
                DataCell(write_letters(one, nights)),
                DataCell(deciding.figures or "-"),
                DataCell(deciding.against or "-"),
                DataCell(_write_date(_find_since(one, trend), nights[-1])),
            ]
        )
    columns = [
        DataColumn("outcome"),
        DataColumn("series"),
        DataColumn(count(len(nights), "night"), number=True, note=LEGEND),
        DataColumn("value (95 %)", number=True),
        DataColumn("reference", number=True, spare=1),
        DataColumn("since"),
    ]
    kept = [i for i in range(len(columns)) if i < 3 or any(row[i].text != "-" for row in rows)]
    return DataTable(
        "Series: value, reference, and since when",
        columns=[columns[i] for i in kept],
        rows=[[row[i] for i in kept] for row in rows],
        caption=LEGEND,
    )


def _write_date(at: date, newest: date) -> str:
    """Return a date without its year, if that is the newest one's."""
    return f"{at:%m-%d}" if at.year == newest.year else str(at)


def _find_since(one: SeriesEnd, trend: Trend | None) -> date:
    """Return the date since which the outcome is what it is, or on which a decline began."""
    if _find_decline(one, trend) and trend is not None and trend.charted is not None:
        return trend.series.nights[find_decline(trend.charted)].started_at.astimezone(UTC).date()
    return one.since.night


def _list_next(folder: Path, shown: Sequence[Row]) -> Iterator[str]:
    """Yield the commands that come next, those of the worst series first."""
    for one, trend in shown:
        deciding = one.deciding
        failed = quote_path(deciding.folder)
        if one.outcome == FAIL and deciding.task:
            if (passed := one.passed_after or one.passed_before) is not None:
                yield f"serve-eval compare {quote_path(passed.folder)} {failed}"
            yield f"serve-eval diagnose {failed}"
        elif one.outcome == FAIL and one.name.startswith(f"{COMPARE.command}:"):
            yield f"serve-eval diagnose {failed}"
        elif deciding.remedy:
            yield deciding.remedy
        elif trend is not None and _find_decline(one, trend):
            series = trend.series
            chosen = f"--task {quote_word(series.task)} --model {quote_word(series.model)}"
            yield f"serve-eval runs trend {quote_path(folder)} {chosen}"


def _list_page_blocks(
    found: FoundFolder, ends: Sequence[SeriesEnd], links: Links
) -> Iterator[Section]:
    """Yield the map, the table of all runs, and folded the trends and the other pages."""
    if ends:
        yield draw_map(ends, links)
    if found.runs:
        yield tabulate_runs(found.runs, links)
    drawn = [
        draw_values(one.series, one.charted, one.series.name) for one in found.trends[:MOST_DRAWN]
    ]
    if pictures := [one for one in drawn if one is not None]:
        title = f"Trends of {len(pictures)} series"
        yield PictureSection(title, pictures, closed=True)
    if found.pages:
        rows = [
            Fact(
                Path(one).stem,
                one,
                href=f"{links.at}{quote(one)}",
            )
            for one in found.pages
        ]
        yield Facts(count(len(rows), "other page"), rows=rows, closed=True)
