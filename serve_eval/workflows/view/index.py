"""Make the page with all runs of a folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from serve_eval import __version__
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
from serve_eval.report.summary.figures import show_value
from serve_eval.report.summary.summary_task import summarise_task
from serve_eval.schema import VerdictOutcome
from serve_eval.series.history import History, sort_runs
from serve_eval.series.read_runs import MOST_DEEP, FinishedRun, read_runs
from serve_eval.workflows.view.listing import Links, date, state_of, tabulate_runs
from serve_eval.workflows.view.trends import DrawnSeries, draw_series, draw_verdicts

_WORDS: Final[Mapping[State, str]] = {
    "fail": "failed in the latest run",
    "warn": "undecided",
    "pass": "passed in the latest run",
    "none": "not judged",
}
"""The states of the latest runs, the worst first."""
MOST_PAGES = 200
"""Pages of other stories that are listed."""


def make_index(folder: Path, *, served: bool) -> PageContent:
    """Return the page of the finished runs below a folder.

    `served`: a server answers its links to pages of two runs. Raises RunFolderError if there is no
    finished run.
    """
    runs, notes = read_runs(folder)
    history = sort_runs(runs, notes)
    drawn = draw_series(history.series, runs)
    latest = list(_find_latest(runs))
    states = Counter(state_of(outcome) for _, outcome, _ in latest)
    alarms = sum(one.alarm for one in drawn)
    told = [f"{len(latest)} series"]
    told += [f"{states[state]} {word}" for state, word in _WORDS.items() if states[state]]
    told.append(count(alarms, "drift alarm") if alarms else "no drift alarm")
    state: State = next((one for one in _WORDS if states[one]), "none")
    if alarms and state != "fail":
        state = "warn"
    return PageContent(
        kind="view",
        title=f"Runs of {folder.name or folder}",
        heading=str(folder),
        state=state,
        badge=count(len(runs), "run"),
        headline=", ".join(told),
        rows=[Fact(label=o.value, text=text, state=state_of(o)) for _, o, text in latest],
        sections=tuple(_list_sections(folder, runs, history, drawn, served=served)),
        foot=f"serve-eval {__version__}",
    )


def _find_latest(runs: Sequence[FinishedRun]) -> Iterator[tuple[str, VerdictOutcome, str]]:
    """Yield each task and model with the verdict and words of its latest run, the worst first."""
    latest: dict[str, tuple[VerdictOutcome, str]] = {}
    for run in sorted(runs, key=lambda one: (one.began, str(one.folder))):
        for task in () if run.report.rehearsal else run.report.tasks:
            outcome, value = task.verdict.outcome, show_value(summarise_task(task))
            name = f"{task.result.task} of {run.report.plan.model}"
            latest[name] = outcome, f"{name}: {value}, {date(run)}"
    states = list(_WORDS)
    for name, (outcome, text) in sorted(
        latest.items(), key=lambda item: (states.index(state_of(item[1][0])), item[0])
    ):
        yield name, outcome, text


def _list_sections(
    folder: Path,
    runs: Sequence[FinishedRun],
    history: History,
    drawn: Sequence[DrawnSeries],
    *,
    served: bool,
) -> Iterator[Section]:
    if warnings := [f"{one.name}: {line}" for one in drawn for line in one.warnings]:
        yield TextLines(title="Warnings", lines=warnings)
    if (heat := draw_verdicts(runs)) is not None:
        yield PictureSection(title="Verdicts", pictures=[heat])
    yield tabulate_runs(runs, Links(folder=folder, served=served))
    if pictures := [one.picture for one in drawn if one.picture is not None]:
        yield PictureSection(title="Trends", pictures=pictures)
    if pages := list(_find_pages(folder, {run.folder for run in runs})):
        yield Facts(title="Other pages", rows=pages)
    if history.notes:
        yield TextLines(title="Notes", lines=history.notes, closed=True)


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
