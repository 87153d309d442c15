"""Show the progress of a run: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import os
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

PLAIN_EVERY_S = 5.0


class PatientConsole(Console):
    """A console that survives the end of its reader, so that the run goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


class BarProgress:
    """One line per task with done, failed, running value, rate and time left.

    It is redrawn at most four times per second.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._tasks: dict[str, _Shown] = {}
        self._drawn = 0.0

    def begin(self, task: str, planned: int, completed: int) -> None:
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("failed {task.fields[failed]}"),
                TextColumn("value {task.fields[value]}"),
                TextColumn("{task.fields[rate]:.0f}/s"),
                TimeRemainingColumn(),
                console=self._console,
                refresh_per_second=4,
            )
            self._bar.start()
        if completed:
            self._console.print(
                f"{task}: {completed} of {planned} answers are already there",
                highlight=False,
                markup=False,
            )
        bar = self._bar.add_task(task, total=planned, failed=0, value="-", rate=0.0)
        self._tasks[task] = _Shown(bar, planned, completed, time.monotonic())

    def update(self, task: str, done: int, failed: int, value: float | None) -> None:
        shown = self._tasks[task]
        shown.last = done, failed, value
        now = time.monotonic()
        if now - self._drawn >= 0.25:
            self._drawn = now
            self._draw(shown, now)

    def _draw(self, shown: _Shown, now: float) -> None:
        done, failed, value = shown.last
        assert self._bar is not None
        self._bar.update(
            shown.bar,
            completed=done + failed,
            failed=failed,
            value=_value(value),
            rate=shown.rate(now),
        )

    def end(self, task: str) -> None:
        shown = self._tasks.pop(task)
        self._draw(shown, time.monotonic())
        if self._bar is not None:
            self._bar.stop_task(shown.bar)
            if not self._tasks:
                self._bar.stop()
                self._bar = None


class PlainProgress:
    """One line per task at its beginning, every few seconds, and at its end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[str, _Shown] = {}

    def begin(self, task: str, planned: int, completed: int) -> None:
        self._tasks[task] = _Shown(TaskID(0), planned, completed, time.monotonic())
        if completed:
            self._console.print(
                f"{task}: {completed} of {planned} answers are already there",
                highlight=False,
                markup=False,
            )

    def update(self, task: str, done: int, failed: int, value: float | None) -> None:
        shown = self._tasks[task]
        shown.last = done, failed, value
        now = time.monotonic()
        if now - shown.said >= PLAIN_EVERY_S:
            self._say(task, shown, now)

    def _say(self, task: str, shown: _Shown, now: float) -> None:
        shown.said = now
        done, failed, value = shown.last
        rate = shown.rate(now)
        left = f", {max(0, shown.planned - done - failed) / rate:.0f} s left" if rate > 0 else ""
        self._console.print(
            f"{task}: {done}/{shown.planned} done, {failed} failed, value {_value(value)},"
            f" {rate:.0f}/s{left}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )

    def end(self, task: str) -> None:
        self._say(task, self._tasks.pop(task), time.monotonic())


class _Shown:
    """A task in progress: its bar, its state at the beginning, and the last figures shown."""

    def __init__(self, bar: TaskID, planned: int, completed: int, began: float) -> None:
        self.bar, self.planned, self._completed, self._began = bar, planned, completed, began
        self.said = began
        self.last: tuple[int, int, float | None] = (completed, 0, None)

    def rate(self, now: float) -> float:
        """Return the answers per second of this session."""
        return (self.last[0] - self._completed) / max(now - self._began, 1e-9)


def progress(console: Console) -> BarProgress | PlainProgress:
    """Return the form of progress that fits the console."""
    return BarProgress(console) if console.is_terminal else PlainProgress(console)
