"""Log a session's events with their times, or say that it asked nothing."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import serve_eval
from serve_eval.errors import ServeEvalError
from serve_eval.schema import (
    Ability,
    Endpoint,
    FailureKind,
    Plan,
    Progress,
    Report,
    SamplingDefaults,
)

if TYPE_CHECKING:
    from serve_eval.evaluation.run_session import RunSession


class Stopwatch:
    """A stopwatch that starts when it is created."""

    def __init__(self) -> None:
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._began = time.monotonic()

    @property
    def wall_s(self) -> float:
        """Seconds since the start, rounded to milliseconds."""
        return round(time.monotonic() - self._began, 3)


FAILURES_EVERY_S = 10.0
"""Shortest time between two lines about the failures of a task."""
Log = Callable[[str], None]


def log_endpoint(
    log: Log, endpoint: Endpoint, found: list[Ability], defaults: SamplingDefaults | None
) -> None:
    """Log what the endpoint is, and the result of each probe."""
    info = endpoint.info
    known = ", ".join(f"{n} {v}" for n, v in (("version", info.version),) if v is not None)
    log(f"endpoint {endpoint.base_url}, model {endpoint.model}{known and f', {known}'}")
    for one in found:
        state = {True: "works", False: "does not work", None: "is not known"}[one.works]
        log(f"probe: {one.need} {state}: {one.seen}")
    if defaults is not None:
        log(
            f"probe: sampling defaults: {defaults.requests} requests, {defaults.tokens} tokens,"
            f" {defaults.wall_s:.2f} s"
        )
        for field in defaults.fields:
            adds = {True: "added", False: "not added", None: "perhaps added"}[field.adds]
            log(f"probe: {field.sent_as} is {field.obedience}, {adds} by the server")


@contextmanager
def log_session(log: Log, plan: Plan, problems: Callable[[], int]) -> Iterator[None]:
    """Log the start of a session, and its end if it is interrupted or fails.

    `problems` counts the retries so far.
    """
    tasks = ", ".join(task.name for task in plan.tasks)
    place = plan.launcher.options.get("base_url", f"launcher {plan.launcher.name}")
    log(f"start: serve-eval {serve_eval.__version__}, {place}, tasks {tasks}")
    try:
        yield
    except asyncio.CancelledError:
        log(f"end: interrupted; {problems()} retries")
        raise
    except ServeEvalError as error:
        log(f"end: {type(error).__name__}: {error}; {problems()} retries")
        raise


def log_report(log: Log, report: Report, retries: int) -> None:
    """Log warnings, failures by cause, verdicts and the end of a session."""
    for task in report.tasks:
        result = task.result
        for line in task.verdict.warnings:
            log(f"warning: {result.task}: {line}")
        causes = ", ".join(f"{count} {kind}" for kind, count in result.failures.items())
        value = "none" if result.value is None else f"{result.value:.3f}"
        log(
            f"{task.verdict.outcome}: {result.task}: value {value}, {result.scored} of"
            f" {result.planned} scored{causes and f', failed: {causes}'}"
        )
    for line in report.warnings:
        log(f"warning: {line}")
    log(f"end: exit code {report.exit_code}, {retries} retries, {report.wall_s:.1f} s")


@dataclass(slots=True)
class LoggedTasks:
    """Progress that is also logged: begin and end of each task, and failures as they come."""

    log: Log
    shown: Progress | None
    clock: Callable[[], float] = time.monotonic
    _failed: dict[str, tuple[str, float]] = field(default_factory=dict)

    def begin(self, task: str, planned: int, completed: int) -> None:
        """Log a task that begins."""
        self.log(f"{task}: {planned} planned, {completed} of them answered before")
        if self.shown is not None:
            self.shown.begin(task, planned, completed)

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None:
        """Log the failures by cause if there are new ones, but not too often."""
        if failed:
            told = ", ".join(f"{count} {kind}" for kind, count in failed.items())
            before, said_s = self._failed.get(task, ("", float("-inf")))
            if told != before and (now_s := self.clock()) - said_s >= FAILURES_EVERY_S:
                self._failed[task] = told, now_s
                self.log(f"{task}: {done} done, failed: {told}")
        if self.shown is not None:
            self.shown.update(task, done, failed, value)

    def end(self, task: str) -> None:
        """Log a task that ends."""
        self.log(f"{task}: asked")
        if self.shown is not None:
            self.shown.end(task)


_WARNING = re.compile(
    r"nothing was asked: .*, the last one (?:since|at) (?P<at>[-\d]+ [:\d]+ UTC);"
)


def warn_of_old_answers(session: RunSession) -> None:
    """Add a warning with the time of the last answer, if the folder has one."""
    if at := find_last_answer([session.folder]):
        session.warnings.append(write_warning(at, "name another folder or give --rerun all"))


def find_last_answer(folders: Iterable[Path]) -> str:
    """Return the time of the last answer in run folders, in UTC; "" if they have none."""
    from serve_eval.storage.reports.folder_results import read_last_answer

    times = [at for folder in folders if (at := read_last_answer(folder)) is not None]
    return f"{datetime.fromtimestamp(max(times), UTC):%Y-%m-%d %H:%M} UTC" if times else ""


def write_warning(at: str, to_ask: str) -> str:
    """Return the warning that all answers are old, the last one of the time `at`.

    `to_ask` says how to ask again. `describe_old_answers` finds the warning.
    """
    return (
        "nothing was asked: every answer was already in the folder, the last one at"
        f" {at}; to ask again, {to_ask}"
    )


def describe_old_answers(warnings: Sequence[str]) -> str:
    """Return that nothing was asked, and the time of the last answer; "" if a session asked."""
    at = find_stated_time(warnings)
    return write_notice(at) if at else ""


def find_stated_time(warnings: Sequence[str]) -> str:
    """Return the time of the last answer in a warning of `write_warning`; "" if there is none."""
    found = next(filter(None, map(_WARNING.match, warnings)), None)
    return "" if found is None else str(found["at"])


def write_notice(at: str) -> str:
    """Return the notice that comes before a result whose last answer is of the time `at`."""
    return f"nothing was asked: the last answer came at {at}"
