"""Run a plan and report its events to a function."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import Launching, address_of, check_launcher, launch
from serve_eval.evaluation.run_session import ignore
from serve_eval.json_schema import Schema, describe_type, name_schema
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import (
    AlarmRaised,
    Endpoint,
    EndpointReady,
    Event,
    FailureKind,
    MessageSaid,
    Plan,
    Progress,
    Report,
    RunError,
    RunFinished,
    RunStarted,
    TaskFinished,
    TaskProgressed,
    TaskReport,
)
from serve_eval.schema.event import EVENTS_VERSION
from serve_eval.storage import run_folder
from serve_eval.verdicts.exit_code import INTERRUPTED

EVERY_S = 1.0
"""Seconds between two events about the progress of a task."""
WARNING = "warning: "
OnEvent = Callable[[Event], None]


@with_scope
async def evaluate_with_events(
    plan: Plan,
    folder: Path,
    on_event: OnEvent,
    *,
    progress: Progress | None = None,
    notify: Callable[[str], None] = ignore,
    launching: Launching | None = None,
    environ: Mapping[str, str] = os.environ,
    **options: Any,
) -> Report:
    """Run a plan as `evaluate` does, and report its events, the last one also after an error.

    `progress` and `notify` receive what they would receive without events.
    """
    reporter = _Reporter(on_event, progress, notify)
    on_event(
        RunStarted(
            folder=str(folder),
            model=plan.model,
            launcher=plan.launcher.name,
            base_url=address_of(plan).base_url or None,
            tasks=tuple(task.name for task in plan.tasks),
        )
    )
    try:
        if launching is None and not run_folder.holds_run(folder):
            extensions.include(plan.include_path)
            check_launcher(plan)  # `evaluate` leaves this to those that launch for it.
        report = await evaluate(
            plan,
            folder,
            progress=reporter,
            notify=reporter.notify,
            launching=reporter.wrap(launching),
            environ=environ,
            **options,
        )
    except ServeEvalError as error:
        ending = RunError(
            kind=type(error).__name__,
            message=str(error),
            hint=error.hint,
            exit_code=error.exit_code,
        )
        on_event(RunFinished(folder=str(folder), exit_code=error.exit_code, error=ending))
        raise
    except asyncio.CancelledError:
        on_event(RunFinished(folder=str(folder), exit_code=INTERRUPTED))
        raise
    for finished in map(_finish_task, report.tasks):
        on_event(finished)
    on_event(RunFinished(folder=str(folder), exit_code=report.exit_code))
    return report


def describe_events() -> Schema:
    """Return the schema of an event."""
    return name_schema(describe_type(Event), "events", EVENTS_VERSION, "An event of serve-eval run")


class _Reporter:
    """Progress and messages of a run as events. Both are passed on as well."""

    def __init__(
        self,
        on_event: OnEvent,
        progress: Progress | None,
        notify: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_event, self._progress, self._notify = on_event, progress, notify
        self._clock = clock
        self._states: dict[str, TaskProgressed] = {}
        self._said_s: dict[str, float] = {}

    def begin(self, task: str, planned: int, completed: int) -> None:
        """Report that a task begins."""
        if self._progress is not None:
            self._progress.begin(task, planned, completed)
        self._report(TaskProgressed(task=task, planned=planned, done=completed))

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None:
        """Keep the state of a task, and report it if that is due."""
        if self._progress is not None:
            self._progress.update(task, done, failed, value)
        state = TaskProgressed(
            task=task,
            planned=self._states[task].planned,
            done=done,
            failed={kind: count for kind, count in failed.items() if count},
            value=value,
        )
        self._states[task] = state
        if self._clock() - self._said_s[task] >= EVERY_S:
            self._report(state)

    def end(self, task: str) -> None:
        """Report the last state of a task."""
        if self._progress is not None:
            self._progress.end(task)
        self._report(msgspec.structs.replace(self._states[task], ended=True))

    def notify(self, line: str) -> None:
        """Report a line, as an alarm if it warns."""
        self._notify(line)
        if line.startswith(WARNING):
            self._on_event(AlarmRaised(text=line.removeprefix(WARNING)))
        else:
            self._on_event(MessageSaid(text=line))

    def wrap(self, launching: Launching | None) -> Launching:
        """Return what launches the endpoint and reports that it is ready."""

        @asynccontextmanager
        async def launch_and_report(
            plan: Plan, prepared: Sequence[PreparedTask], folder: Path
        ) -> AsyncIterator[Endpoint]:
            opened = (
                launch(plan, prepared, folder, notify=self.notify)
                if launching is None
                else launching(plan, prepared, folder)
            )
            async with opened as endpoint:
                self._on_event(EndpointReady(base_url=endpoint.base_url, model=endpoint.model))
                yield endpoint

        return launch_and_report

    def _report(self, state: TaskProgressed) -> None:
        self._states[state.task], self._said_s[state.task] = state, self._clock()
        self._on_event(state)


def _finish_task(task: TaskReport) -> TaskFinished:
    verdict = task.verdict
    return TaskFinished(
        task=task.result.task,
        outcome=verdict.outcome,
        value=verdict.evaluated,
        reference=verdict.reference,
        threshold=verdict.threshold,
        planned=task.result.planned,
        failed=task.result.failed,
        reasons=verdict.reasons,
    )
