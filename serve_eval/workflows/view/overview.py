"""Tell how each series ended, and every failure that nothing has answered since."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from serve_eval.evaluation.storage.reports.ended_early import EndedEarly
from serve_eval.evaluation.storage.reports.folder_results import FolderResult
from serve_eval.report.document import name_state
from serve_eval.report.page.content import State
from serve_eval.report.summary import summarise_task
from serve_eval.report.summary.figures import show_value
from serve_eval.schema import VerdictOutcome
from serve_eval.series.deployments import read_seed
from serve_eval.series.keys import SeriesKey, find_apart, key_of, stands_alone
from serve_eval.series.read_runs import FinishedRun

LAST_NIGHT = timedelta(hours=36)
"""Time before the newest result of a folder within which a failure is shown although a later run
passed. It covers the night and the day after it, in which a run is repeated."""
_UNJUDGED: Final = (VerdictOutcome.NO_REFERENCE, VerdictOutcome.NOT_JUDGED, VerdictOutcome.SHARD)
MOST_FAILURES = 3
"""Failures of a series that are shown one by one, if they are of one night."""
STATES: Final[tuple[State, ...]] = ("fail", "warn", "pass", "none")
"""The states of series, the worst first."""


def state_of(outcome: VerdictOutcome) -> State:
    """Return the state of an outcome; one that was not judged has no colour."""
    return "none" if outcome in _UNJUDGED else name_state(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The outcome of one task of a run, or of a comparison or check, and where it is."""

    name: str
    outcome: VerdictOutcome
    value: str
    began: datetime
    folder: Path

    @property
    def date(self) -> str:
        return f"{self.began.astimezone(UTC):%Y-%m-%d %H:%M}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesEnd:
    """How a series ended: its latest outcome, and the failures before it that are still told.

    `passed` is set if a later run passed after them.
    """

    latest: Ending
    failures: Sequence[Ending] = ()
    passed: Ending | None = None

    @property
    def state(self) -> State:
        return "fail" if self.failures else state_of(self.latest.outcome)

    def lines(self) -> Iterator[tuple[VerdictOutcome, str, Path]]:
        """Yield outcomes with words and folders: the last failures, then the latest run."""
        latest, last = self.latest, self.failures[-1:]
        shown = [
            one for one in self.failures[-MOST_FAILURES:] if one.began > last[0].began - LAST_NIGHT
        ]
        for one in reversed(shown):
            since = f", {self._since()}" if latest not in last else ""
            more = len(self.failures) - len(shown) if one is shown[0] else 0
            before = f"; {more} more failure{'s'[: more > 1]} before" if more else ""
            yield one.outcome, f"{_words(one)}{since}{before}", one.folder
        if latest not in last:
            yield latest.outcome, _words(latest), latest.folder

    def _since(self) -> str:
        if self.passed is not None:
            return f"passed on {self.passed.date}"
        return f"not passed since ({self.latest.outcome.value} on {self.latest.date})"


def _words(ending: Ending) -> str:
    value = f"{ending.value}, " if ending.value else ""
    return f"{ending.name}: {value}{ending.date}"


def list_ends(runs: Sequence[FinishedRun], results: Sequence[FolderResult]) -> list[SeriesEnd]:
    """Return how each series, comparison and check ended, the worst first.

    Parts of comparisons and checks, and rehearsals, are no runs of a series. A failure is shown
    until a later run of the same series passes, and within LAST_NIGHT in any case.
    """
    groups: dict[Hashable, list[Ending]] = defaultdict(list)
    names = name_series(runs)
    apart = find_apart(runs)
    for run in runs:
        for task in run.report.tasks if stands_alone(run) else ():
            key = key_of(run, task, apart)
            groups[key].append(
                Ending(
                    name=names[key],
                    outcome=run.find_outcome(task),
                    value=show_value(summarise_task(task)),
                    began=run.began,
                    folder=run.folder,
                )
            )
    for one in results:
        groups[one.command, one.subject].append(
            Ending(
                name=f"{one.command}: {one.subject}" if one.subject else one.command,
                outcome=one.outcome,
                value=one.value,
                began=one.began,
                folder=one.folder,
            )
        )
    newest = max((one.began for group in groups.values() for one in group), default=None)
    ends = [_end(group, newest - LAST_NIGHT) for group in groups.values()] if newest else []
    return sorted(ends, key=lambda one: (STATES.index(one.state), one.latest.name))


def state_of_early(one: EndedEarly, newest: datetime) -> State:
    """Return the state of a command without a result: red if nobody stopped it in LAST_NIGHT."""
    stopped = one.outcome in ("INTERRUPTED", "INCONCLUSIVE")
    return "warn" if stopped or one.ended < newest - LAST_NIGHT else "fail"


def say_early(one: EndedEarly) -> str:
    """Return what ended without a result, when, why, and how to go on."""
    cause = f": {one.cause}" if one.cause else ""
    when = f"{one.ended:%Y-%m-%d %H:%M}"
    return f"{one.about}: ended without a result, {when}{cause}; to go on: {one.remedy}"


def _end(group: Sequence[Ending], last_night: datetime) -> SeriesEnd:
    ordered = sorted(group, key=lambda one: (one.began, str(one.folder)))
    passes = [i for i, one in enumerate(ordered) if one.outcome is VerdictOutcome.PASS]
    last_pass = passes[-1] if passes else -1
    failures = [
        one
        for i, one in enumerate(ordered)
        if one.outcome is VerdictOutcome.FAIL and (i > last_pass or one.began >= last_night)
    ]
    answered = bool(failures) and ordered.index(failures[-1]) < last_pass
    return SeriesEnd(
        latest=ordered[-1],
        failures=failures,
        passed=ordered[last_pass] if answered else None,
    )


def _name_seed(key: SeriesKey) -> str:
    """Return the sampling seed of a series in words."""
    seed = read_seed(msgspec.json.decode(key.protocol))
    return f"seed {seed}" if seed else "no seed"


def name_series(runs: Sequence[FinishedRun]) -> dict[SeriesKey, str]:
    """Return a name for each series: its task and model, and what else tells it from the others."""
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
