"""Log the events of a session: start, endpoint, probes, failures by cause, warnings, end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

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
