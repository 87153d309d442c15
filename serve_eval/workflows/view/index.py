"""Make the page with all runs of a folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from serve_eval import __version__
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage.reports.ended_early import EndedEarly
from serve_eval.evaluation.storage.reports.folder_results import FolderResult
from serve_eval.report.page.content import (
    Fact,
    Facts,
    PageContent,
    PictureSection,
    Section,
    State,
    TextLines,
)
from serve_eval.report.pictures.labels import count
from serve_eval.series.history import History, sort_runs
from serve_eval.series.read_runs import (
    MOST_DEEP,
    FinishedRun,
    read_ended_early,
    read_results,
    read_runs,
)
from serve_eval.workflows.view.listing import Links, tabulate_runs
from serve_eval.workflows.view.overview import (
    STATES,
    SeriesEnd,
    list_ends,
    say_early,
    state_of,
    state_of_early,
)
from serve_eval.workflows.view.trends import DrawnSeries, draw_series, draw_verdicts

_WORDS: Final[Mapping[State, str]] = {
    "fail": "failed",
    "warn": "undecided",
    "pass": "passed in the latest run",
    "none": "not judged",
}
"""The states of series, the worst first."""
MOST_PAGES = 200
"""Pages of other stories that are listed."""


def make_index(folder: Path, *, served: bool) -> PageContent:
    """Return the page of the finished runs below a folder.

    `served`: a server answers its links to pages of two runs. Raises RunFolderError if there is no
    finished run, no result of a comparison or check, and no command that ended without one.
    """
    runs, every, early, notes = _read(folder)
    results = [one for one in every if not one.rehearsal]
    rehearsals = len(every) - len(results)
    rehearsals += sum(run.report.rehearsal and not run.part_of for run in runs)
    history = sort_runs(runs, notes)
    drawn = draw_series(history.series, runs)
    ends = list_ends(runs, results)
    alarms = [one for one in drawn if one.alarm]
    times = [*(one.latest.began for one in ends), *(one.ended for one in early)]
    died = [
        Fact(label=one.outcome, text=say_early(one), state=state_of_early(one, max(times)))
        for one in early
    ]
    states = {*(one.state for one in ends), *(one.state for one in died)}
    states |= {"warn"} if alarms else set()
    state: State = next((one for one in STATES if one in states), "none")
    links = Links(folder=folder, served=served)
    told = [
        Fact(
            label=outcome.value,
            text=f"{text} ({links.name(place)})",
            state=state_of(outcome),
            href=links.to_page(place),
        )
        for end in ends
        for outcome, text, place in end.lines()
    ]
    rows = sorted([*died, *told], key=lambda row: row.state != "fail")
    return PageContent(
        kind="view",
        title=f"Runs of {folder.name or folder}",
        heading=str(folder),
        state=state,
        badge=count(len(runs), "run"),
        headline=_headline(ends, len(results), len(early), len(alarms), rehearsals),
        rows=[*rows, *(Fact(label="ALARM", text=_alarm(one), state="warn") for one in alarms)],
        sections=tuple(_list_sections(folder, runs, history, drawn, links)),
        foot=f"serve-eval {__version__}",
    )


def _read(
    folder: Path,
) -> tuple[list[FinishedRun], list[FolderResult], list[EndedEarly], list[str]]:
    """Return the runs, the results and what has none below a folder, and notes on the rest."""
    damaged: list[str] = []
    results = read_results(folder, damaged) if folder.is_dir() else []
    early = read_ended_early(folder) if folder.is_dir() else []
    try:
        runs, notes = read_runs(folder)
    except RunFolderError:
        if not results and not early:
            raise
        runs, notes = [], []
    return runs, results, early, [*notes, *damaged]


def _headline(
    ends: Sequence[SeriesEnd], results: int, early: int, alarms: int, rehearsals: int
) -> str:
    """Return how many series failed, are undecided, passed, and alarm, or have no result."""
    states = Counter(one.state for one in ends)
    told = [f"{len(ends)} series"]
    if results:
        told[0] += " and checks"
    told += [f"{states[state]} {word}" for state, word in _WORDS.items() if states[state]]
    if early:
        told.append(f"{early} ended without a result")
    told.append(count(alarms, "drift alarm") if alarms else "no drift alarm")
    if rehearsals:
        told.append(f"{count(rehearsals, 'rehearsal')} not counted")
    return ", ".join(told)


def _alarm(drawn: DrawnSeries) -> str:
    line = next((one for one in drawn.warnings if one.startswith("ALARM")), "")
    return f"{drawn.name}: {line.removeprefix('ALARM: ')}"


def _list_sections(
    folder: Path,
    runs: Sequence[FinishedRun],
    history: History,
    drawn: Sequence[DrawnSeries],
    links: Links,
) -> Iterator[Section]:
    if (heat := draw_verdicts(runs)) is not None:
        yield PictureSection(title="Verdicts", pictures=[heat])
    if warnings := [f"{one.name}: {line}" for one in drawn for line in one.warnings]:
        yield TextLines(title=count(len(warnings), "warning"), lines=warnings, closed=True)
    yield tabulate_runs(runs, links)
    if pictures := [one.picture for one in drawn if one.picture is not None]:
        yield PictureSection(title="Trends", pictures=pictures)
    if pages := list(_find_pages(folder, {run.folder for run in runs})):
        yield Facts(title="Other pages", rows=pages)
    if history.notes:
        title = count(len(history.notes), "note")
        yield TextLines(title=title, lines=history.notes, closed=True)


def _find_pages(folder: Path, runs: set[Path]) -> Iterator[Fact]:
    """Yield the pages that are not those of a run, such as the page of a comparison."""
    found = 0
    for path, folders, files in os.walk(folder):
        here = Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(here.relative_to(folder).parts) >= MOST_DEEP or here in runs:
            folders.clear()
        for name in sorted(files) if here not in runs else ():
            if name.endswith(".html") and not name.startswith("."):
                shown = (here / name).relative_to(folder).as_posix()
                yield Fact(label=name.removesuffix(".html"), text=shown, href=quote(shown))
                if (found := found + 1) >= MOST_PAGES:
                    return
