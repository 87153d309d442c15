"""Show the progress of a run: a line per task on a terminal, elsewhere a line every half minute."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from rich.console import Console, Group
from rich.live import Live

from serve_eval.cli._progress_line import TaskState, format_drawn, format_logged
from serve_eval.cli._streams import is_quiet
from serve_eval.schema import FailureKind

LOGGED_EVERY_S = 30.0
DRAWN_PER_SECOND = 4


class PatientConsole(Console):
    """A console that survives the end of its reader, so that the run goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


class _Progress:
    """The tasks in progress, and those that ended while others run."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._tasks: dict[str, TaskState] = {}

    def begin(self, task: str, planned: int, completed: int) -> None:
        self._tasks[task] = TaskState(
            name=task,
            planned=planned,
            completed=completed,
            began_s=self._clock(),
            done=completed,
        )
        if completed:
            self._print(f"{task}: {completed} of {planned} answers are already there")

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None:
        state = self._tasks[task]
        state.done, state.failed, state.value = done, failed, value

    def _end(self, task: str) -> TaskState:
        state = self._tasks[task]
        state.ended_s = self._clock()
        return state

    def _list_running(self) -> list[TaskState]:
        return [state for state in self._tasks.values() if state.ended_s is None]

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


class DrawnProgress(_Progress):
    """One line per task with fixed columns, redrawn several times per second."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, clock)
        self._live: Live | None = None

    def begin(self, task: str, planned: int, completed: int) -> None:
        super().begin(task, planned, completed)
        if self._live is None:
            self._live = Live(
                get_renderable=self.render,
                console=self._console,
                refresh_per_second=DRAWN_PER_SECOND,
            )
            self._live.start()

    def end(self, task: str) -> None:
        self._end(task)
        if self._live is not None and not self._list_running():
            self._live.stop()
            self._live = None
            self._tasks.clear()

    def render(self) -> Group:
        """Return the lines of all tasks."""
        now_s, width = self._clock(), self._console.width
        states = list(self._tasks.values())  # the drawing thread reads while tasks begin
        return Group(*(format_drawn(state, now_s, width) for state in states))


class LoggedProgress(_Progress):
    """One line about all running tasks every half minute, and one at the end of each task."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, clock)
        self._said_s = clock()

    def begin(self, task: str, planned: int, completed: int) -> None:
        if not self._tasks:
            self._said_s = self._clock()
        super().begin(task, planned, completed)

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None:
        super().update(task, done, failed, value)
        now_s = self._clock()
        if now_s - self._said_s >= LOGGED_EVERY_S:
            self._said_s = now_s
            self._print(format_logged(self._list_running(), now_s))

    def end(self, task: str) -> None:
        state = self._end(task)
        del self._tasks[task]
        self._print(format_logged([state], self._clock()))


def progress(console: Console) -> DrawnProgress | LoggedProgress:
    """Return the form of progress that fits the console; that of a quiet command is not shown."""
    console.quiet = console.quiet or is_quiet()
    return DrawnProgress(console) if console.is_terminal else LoggedProgress(console)
