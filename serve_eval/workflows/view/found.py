"""Read what a folder holds: finished runs, results of other commands, and what has none."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.series.chart import Chart
from serve_eval.series.history import Series, sort_runs
from serve_eval.series.read_runs import (
    MOST_DEEP,
    FinishedRun,
    read_ended_early,
    read_results,
    read_runs,
)
from serve_eval.series.trends import try_chart
from serve_eval.workflows.view.overview import SeriesEnd, list_ends

MOST_PAGES = 200
"""Pages of other stories that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A series with its drift chart (None: it has none), and with warnings about both."""

    series: Series
    charted: Chart | None
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFolder:
    """The content of a folder.

    `ends` are its series, comparisons and checks, the worst first, and `early` counts the commands
    without a result among them. `trends` are those of the series of runs, the longest first, and
    `pages` the paths of pages in the folder that are not those of a run.
    """

    folder: Path
    runs: Sequence[FinishedRun]
    ends: Sequence[SeriesEnd]
    results: int = 0
    early: int = 0
    rehearsals: int = 0
    trends: Sequence[Trend] = ()
    pages: Sequence[str] = ()
    notes: Sequence[str] = ()


def read_folder(folder: Path) -> FoundFolder:
    """Return what a folder holds, at any depth.

    Raises RunFolderError if there is no finished run, no result of a comparison or check, and no
    command that ended without one.
    """
    damaged: list[str] = []
    every = read_results(folder, damaged) if folder.is_dir() else []
    early = read_ended_early(folder) if folder.is_dir() else []
    try:
        runs, notes = read_runs(folder)
    except RunFolderError:
        if not every and not early:
            raise
        runs, notes = [], []
    results = [one for one in every if not one.rehearsal]
    rehearsals = len(every) - len(results)
    rehearsals += sum(run.report.rehearsal and not run.part_of for run in runs)
    history = sort_runs(runs, [*notes, *damaged])
    ordered = sorted(history.series, key=lambda one: (-len(one.nights), one.name))
    return FoundFolder(
        folder=folder,
        runs=runs,
        ends=list_ends(runs, results, early),
        results=len(results),
        early=len(early),
        rehearsals=rehearsals,
        trends=[
            Trend(series=one, charted=charted, warnings=warnings)
            for one in ordered
            for charted, warnings in [try_chart(one)]
        ],
        pages=list(_find_pages(folder, {run.folder for run in runs})),
        notes=history.notes,
    )


def find_trends(found: FoundFolder) -> Mapping[tuple[Path, str], Trend]:
    """Return the trend by each folder and task of its runs."""
    return {
        (night.run, one.series.task): one for one in found.trends for night in one.series.nights
    }


def _find_pages(folder: Path, runs: set[Path]) -> Iterator[str]:
    """Yield the pages that are not those of a run, such as the page of a comparison."""
    found = 0
    for path, folders, files in os.walk(folder):
        here = Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(here.relative_to(folder).parts) >= MOST_DEEP or here in runs:
            folders.clear()
        for name in sorted(files) if here not in runs else ():
            if name.endswith(".html") and not name.startswith("."):
                yield (here / name).relative_to(folder).as_posix()
                if (found := found + 1) >= MOST_PAGES:
                    return
