"""Read what a folder holds, sort it into series, and find how each ended.

A series is a task of runs that belong together, a comparison or check of one subject, or a command
that ended without a result.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.frozen import freeze
from serve_eval.report.document import name_state, rank_outcome
from serve_eval.report.page.content import State
from serve_eval.report.summary import SummaryTask, summarise_task
from serve_eval.report.summary.figures import change, figure, show_value, span
from serve_eval.schema import TaskReport, VerdictOutcome
from serve_eval.series.chart import Chart, try_chart
from serve_eval.series.deployments import read_seed
from serve_eval.series.history import Series, SeriesKey, find_apart, key_of, sort_runs, stands_alone
from serve_eval.series.read_runs import (
    MOST_DEEP,
    FinishedRun,
    read_ended_early,
    read_results,
    read_runs,
)
from serve_eval.storage.folder_results import EndedEarly, FolderResult

MOST_PAGES = 200
"""Pages of other stories that are listed."""


@freeze
class Trend:
    """A series with its drift chart (None: it has none), and with warnings about both."""

    series: Series
    charted: Chart | None
    warnings: Sequence[str]


@freeze
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


LAST_NIGHT = timedelta(hours=36)
"""Time before the newest result of a folder within which a failure is shown although a later run
passed. It covers the night and the day after it, in which a run is repeated."""
UNJUDGED: Final = (
    VerdictOutcome.NO_REFERENCE.value,
    VerdictOutcome.NOT_JUDGED.value,
    VerdictOutcome.SHARD.value,
)
PASS, FAIL = VerdictOutcome.PASS.value, VerdictOutcome.FAIL.value


def state_of(outcome: str) -> State:
    """Return the state of an outcome; one that was not judged has no colour."""
    return "none" if outcome in UNJUDGED else name_state(outcome)


@freeze
class Ending:
    """The outcome of one task of a run, of a comparison or check, or of a command without a result.

    `value` is that of the task, with the reference in `against` and by how much it is below or
    above that in `drop`; each is "" if not known. A command without a result has a `cause`, and a
    `remedy` if it goes on by a command that needs no more than its folder. `summary` is that
    of a task of a run.
    """

    outcome: str
    began: datetime
    folder: Path
    task: str = ""
    value: str = ""
    interval: str = ""
    against: str = ""
    drop: str = ""
    cause: str = ""
    remedy: str = ""
    summary: SummaryTask | None = None

    @property
    def when(self) -> str:
        """The time to the minute, in UTC."""
        return f"{self.began.astimezone(UTC):%Y-%m-%d %H:%M}"

    @property
    def night(self) -> date:
        """The date, in UTC."""
        return self.began.astimezone(UTC).date()

    @property
    def figures(self) -> str:
        """The value with its interval."""
        return f"{self.value} ({self.interval})" if self.interval else self.value

    @property
    def distance(self) -> str:
        """The reference, and how far the value is from it."""
        if not self.against:
            return ""
        return f"{self.drop} reference {self.against}" if self.drop else f"reference {self.against}"

    @property
    def compared(self) -> str:
        """The value with its interval, and the reference with the drop."""
        return ", ".join(filter(None, (self.figures, self.distance)))


@freeze
class SeriesEnd:
    """The endings of a series, oldest first. `last_night` is when the last night begins."""

    name: str
    endings: Sequence[Ending]
    last_night: datetime

    @property
    def latest(self) -> Ending:
        return self.endings[-1]

    @property
    def failures(self) -> Sequence[Ending]:
        """The failures that are still to be seen: since the last pass, or of the last night."""
        last_pass = self._last_pass
        return [
            one
            for i, one in enumerate(self.endings)
            if one.outcome == FAIL and (i > last_pass or one.began >= self.last_night)
        ]

    @property
    def outcome(self) -> str:
        return FAIL if self.failures else self.latest.outcome

    @property
    def deciding(self) -> Ending:
        """The last failure that is still to be seen, or else the latest ending."""
        return self.failures[-1] if self.failures else self.latest

    @property
    def passed_after(self) -> Ending | None:
        """The last pass, if it came after the last failure that is still to be seen."""
        last = self._last_pass
        answered = self.failures and list(self.endings).index(self.failures[-1]) < last
        return self.endings[last] if answered else None

    @property
    def passed_before(self) -> Ending | None:
        """The last pass before the failures that are still to be seen."""
        if not self.failures:
            return None
        before = list(self.endings)[: list(self.endings).index(self.failures[0])]
        return next((one for one in reversed(before) if one.outcome == PASS), None)

    @property
    def since(self) -> Ending:
        """The ending since which the outcome is what it is."""
        if self.failures:
            return self.failures[0]
        found = self.latest
        for one in reversed(self.endings):
            if one.outcome != found.outcome:
                break
            found = one
        return found

    @property
    def _last_pass(self) -> int:
        return max((i for i, one in enumerate(self.endings) if one.outcome == PASS), default=-1)


def list_ends(
    runs: Sequence[FinishedRun], results: Sequence[FolderResult], early: Sequence[EndedEarly]
) -> list[SeriesEnd]:
    """Return how each series, comparison and check ended, the worst first.

    Parts of comparisons and checks, and rehearsals, are no runs of a series. A failure is shown
    until a later run of the same series passes, and within LAST_NIGHT in any case. A command
    without a result does not begin a new night for those that have one.
    """
    groups: dict[Hashable, list[Ending]] = defaultdict(list)
    names: dict[Hashable, str] = {}
    for key, name, ending in (*_list_runs(runs), *_list_results(results), *_list_early(early)):
        groups[key].append(ending)
        names[key] = name
    every = [one for group in groups.values() for one in group]
    results_only = [one for one in every if not one.cause]
    ends = [
        SeriesEnd(
            name=names[key],
            endings=sorted(group, key=lambda one: (one.began, str(one.folder))),
            last_night=max(one.began for one in among) - LAST_NIGHT,
        )
        for key, group in groups.items()
        for among in [every if group[0].cause else results_only]
    ]
    return sorted(ends, key=lambda one: (rank_outcome(one.outcome), one.name))


Named = tuple[Hashable, str, Ending]
"""A key, a name and an ending of a series."""


def _list_runs(runs: Sequence[FinishedRun]) -> Iterator[Named]:
    names, apart = name_series(runs), find_apart(runs)
    for run in runs:
        for task in run.report.tasks if stands_alone(run) else ():
            key = key_of(run, task, apart)
            yield key, names[key], _describe(run, task)


def _describe(run: FinishedRun, task: TaskReport) -> Ending:
    one, metric = summarise_task(task), task.result.metric
    reference, fall = task.verdict.reference, change(one)
    drop = ""
    if fall is not None and figure(abs(fall), metric) != figure(0.0, metric):
        drop = f"{figure(abs(fall), metric)} {'below' if fall < 0.0 else 'above'}"
    return Ending(
        outcome=run.find_outcome(task).value,
        began=run.began,
        folder=run.folder,
        task=task.result.task,
        value=show_value(one),
        interval="" if task.result.interval is None else span(task.result.interval, metric),
        against="" if reference is None else figure(reference, metric),
        drop=drop,
        summary=one,
    )


def _list_results(results: Sequence[FolderResult]) -> Iterator[Named]:
    for one in results:
        name = f"{one.command}: {one.subject}" if one.subject else one.command
        yield (
            (one.command, one.subject),
            name,
            Ending(outcome=one.outcome.value, began=one.began, folder=one.folder, value=one.value),
        )


def _list_early(early: Sequence[EndedEarly]) -> Iterator[Named]:
    for one in early:
        told = Ending(
            outcome=one.outcome,
            began=one.ended,
            folder=one.folder,
            cause=say_early(one),
            remedy=one.remedy if one.remedy.startswith("serve-eval ") else "",
        )
        yield ("early", str(one.folder)), one.about, told


def say_early(one: EndedEarly) -> str:
    """Return what ended without a result, when, why, and how to go on."""
    cause = f": {one.cause}" if one.cause else ""
    when = f"{one.ended:%Y-%m-%d %H:%M}"
    return f"ended without a result, {when}{cause}; to go on: {one.remedy}"


def say_failure(one: SeriesEnd) -> str:
    """Return how far the last failure is off, since when the series fails, and its last pass."""
    first, last, number = one.failures[0], one.failures[-1], len(one.failures)
    before, after = one.passed_before, one.passed_after
    times = f" {number} times" if number > 1 else ""
    if after is not None:
        when = f"from {first.when} to {last.when}" if number > 1 else f"on {last.when}"
        said = [last.distance, f"failed{times} {when}", f"passed again on {after.when}"]
    else:
        said = [last.distance, f"fails since {first.when}{times and ','}{times}"]
        if one.latest is not last:
            said.append(f"not passed since ({one.latest.outcome} on {one.latest.when})")
        said.append(f"passed last on {before.when}" if before else "no run before passed")
    return "; ".join(filter(None, said))


def _name_seed(key: SeriesKey) -> str:
    """Return the sampling seed of a series in words."""
    seed = read_seed(msgspec.json.decode(key.protocol))
    return f"seed {seed}" if seed else "no seed"


def name_series(runs: Iterable[FinishedRun]) -> dict[SeriesKey, str]:
    """Return a name for each series: its task and model, and what else tells it from the others."""
    runs = list(runs)
    apart = find_apart(runs)
    keys = {
        key_of(run, task, apart): str(task.result.planned)
        for run in runs
        if stands_alone(run)
        for task in run.report.tasks
    }
    alike = Counter((key.task, key.model) for key in keys)
    names = dict[SeriesKey, str]()
    for key, answers in keys.items():
        name = f"{key.task} of {key.model}"
        if alike[key.task, key.model] > 1:
            group = [one for one in keys if (one.task, one.model) == (key.task, key.model)]
            more = [key.spec] if len({one.spec for one in group}) > 1 else []
            more += [key.deployment] if len({one.deployment for one in group}) > 1 else []
            more += [_name_seed(key)] if len({*map(_name_seed, group)}) > 1 else []
            more += [f"{answers} answers"] if len({keys[one] for one in group}) > 1 else []
            name = ", ".join([name, *filter(None, more)])
        same = sum(one == name or one.startswith(f"{name} (") for one in names.values())
        names[key] = f"{name} ({same + 1})" if same else name
    return names
