"""Show the progress of a run: a line per task, or every event as a line of JSON."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from serve_eval.cli._streams import is_quiet
from serve_eval.schema import FailureKind

if TYPE_CHECKING:
    from serve_eval.report.document import Document
    from serve_eval.schema import Event, Report, RunFinished


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


def show_progress() -> DrawnProgress | LoggedProgress:
    """Return the progress of a command, which it shows on standard error."""
    return progress(PatientConsole(stderr=True, highlight=False, emoji=False))


NAME_COLUMNS, NARROW_NAME_COLUMNS = 16, 10
"""Columns of a task's name, and those on a terminal without room for a bar."""
BAR_COLUMNS = 6
LEFT_COLUMNS = 11
"""Columns of the time left, such as "12 min left"."""
LEAST_WIDTH_OF_BAR = 70
CALM, GOOD, BAD = "cyan", "green", "red"
"""Colours: nothing is red before its task has ended."""
WORDS = {
    FailureKind.HTTP_ERROR: "HTTP error",
    FailureKind.TIMEOUT: "timed out",
    FailureKind.DISCONNECTED: "disconnected",
    FailureKind.INVALID_RESPONSE: "unreadable",
    FailureKind.JUDGE_ERROR: "not judged",
    FailureKind.SCORER_ERROR: "not scored",
}


@dataclass(slots=True, kw_only=True)
class TaskState:
    """A task in progress: its state at the beginning, and its latest figures."""

    name: str
    planned: int
    completed: int
    began_s: float
    done: int = 0
    failed: Mapping[FailureKind, int] = field(default_factory=dict)
    value: float | None = None
    ended_s: float | None = None

    @property
    def finished(self) -> int:
        """The samples with an answer or a failure."""
        return self.done + sum(self.failed.values())

    def compute_rate(self, now_s: float) -> float:
        """Return the answers per second of this session."""
        spent_s = (now_s if self.ended_s is None else self.ended_s) - self.began_s
        return (self.done - self.completed) / max(spent_s, 1e-9)


def format_drawn(state: TaskState, now_s: float, width: int) -> Text:
    """Return a line for a terminal. Its columns are the same as long as the task runs."""
    wide = width >= LEAST_WIDTH_OF_BAR
    digits = len(str(state.planned))
    line = Text(_shorten(state.name, NAME_COLUMNS if wide else NARROW_NAME_COLUMNS), no_wrap=True)
    if wide:
        line.append(" ").append_text(_draw_bar(state))
    line.append(f" {state.finished:>{digits}}/{state.planned}")
    line.append(f" {format_left([state], now_s):>{LEFT_COLUMNS}}")
    line.append_text(_format_rest(state, now_s, width - line.cell_len - 2))
    line.truncate(width)
    return line


def format_logged(states: Iterable[TaskState], now_s: float) -> str:
    """Return a line for a log, about one task or about all that run."""
    states = list(states)
    counts = ", ".join(f"{one.name}: {one.done}/{one.planned}" for one in states)
    failed: dict[FailureKind, int] = {}
    for state in states:
        for kind, count in state.failed.items():
            failed[kind] = failed.get(kind, 0) + count
    parts = [f"{counts} done", format_failures(failed) or "0 failed"]
    if len(states) == 1 and states[0].value is not None:
        parts.append(f"value {format_value(states[0].value)}")
    parts.append(f"{sum(state.compute_rate(now_s) for state in states):.0f}/s")
    if any(state.ended_s is None for state in states) and (left := format_left(states, now_s)):
        parts.append(left)
    return ", ".join(parts)


def format_left(states: Iterable[TaskState], now_s: float) -> str:
    """Return the time left of tasks that share an endpoint; for one that ended, the time taken."""
    states = list(states)
    if len(states) == 1 and (ended_s := states[0].ended_s) is not None:
        return f"in {_format_time(ended_s - states[0].began_s)}"
    rate = sum(state.compute_rate(now_s) for state in states)
    missing = sum(state.planned - state.finished for state in states)
    return f"{_format_time(max(0, missing) / rate)} left" if rate > 0 else ""


def format_failures(failed: Mapping[FailureKind, int]) -> str:
    """Return failures in words, the most frequent first, or "" if there are none."""
    ordered = sorted((-count, WORDS[kind]) for kind, count in failed.items() if count)
    told = [f"{-n} {word}{'s' if n < -1 and 'error' in word else ''}" for n, word in ordered]
    return f"{sum(failed.values())} failed: {', '.join(told)}" if told else ""


def format_value(value: float | None) -> str:
    """Return the running value in points."""
    return "-" if value is None else f"{value:.2f}"


def _format_rest(state: TaskState, now_s: float, room: int) -> Text:
    """Return what has room at the end of a line: the failures, else the value and the rate."""
    told = format_failures(state.failed)
    if told:
        style = "" if state.ended_s is None else BAD
        kinds = told.split(", ")
        fewer = [", ".join([*kinds[:n], "…"]) for n in range(len(kinds) - 1, 0, -1)]
        texts = (told, *fewer, told.partition(":")[0])
        fitting = [text for text in texts if len(text) <= room]
        return Text(f"  {fitting[0]}", style) if fitting else Text()
    value, rate = format_value(state.value), f"{state.compute_rate(now_s):.0f}/s"
    fitting = [text for text in (f"{value:>6} {rate:>8}", f"{value:>6}") if len(text) <= room]
    return Text(f"  {fitting[0]}" if fitting else "")


def _draw_bar(state: TaskState) -> Text:
    full = BAR_COLUMNS * min(state.finished, state.planned) // max(state.planned, 1)
    good = state.ended_s is not None and not any(state.failed.values())
    bar = Text("━" * full, GOOD if good else CALM)
    return bar.append("━" * (BAR_COLUMNS - full), "dim")


def _shorten(name: str, columns: int) -> str:
    """Return a name in exactly this number of columns."""
    return name.ljust(columns) if len(name) <= columns else f"{name[: columns - 1]}…"


def _format_time(seconds: float) -> str:
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 99.5:
        return f"{minutes:.0f} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 99.95 else f"{min(hours / 24, 999):.0f} d"


def check_events(wanted: bool, others: Mapping[str, bool]) -> None:
    """Raise PlanError for options that print something else on standard output."""
    from serve_eval.errors import PlanError

    if wanted and (clashing := [flag for flag, given in others.items() if given]):
        raise PlanError(f"--json-events and {clashing[0]} exclude each other: give one of them")


class EventPrinter:
    """Write each event on a line of its own at once, the last one at the end of the block.

    The result of the command comes before that. A reader that is gone ends nothing.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._last: RunFinished | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._last is None:
            return
        if error is not None and self._last.error is None:  # after the run itself
            import msgspec

            from serve_eval.schema import RunError
            from serve_eval.verdicts.exit_code import INFRASTRUCTURE

            told = RunError(
                kind=type(error).__name__, message=str(error), hint="", exit_code=INFRASTRUCTURE
            )
            self._last = msgspec.structs.replace(self._last, exit_code=INFRASTRUCTURE, error=told)
        _print(self._last)

    @property
    def evaluate(self) -> Callable[..., Coroutine[Any, Any, Report]]:
        """The function that runs a plan, and reports its events if they are wanted."""
        if not self._wanted:
            from serve_eval.evaluation.evaluate import evaluate

            return evaluate
        from functools import partial

        from serve_eval.workflows.events import evaluate_with_events

        return partial(evaluate_with_events, on_event=self._take)

    def _take(self, event: Event) -> None:
        from serve_eval.schema import RunFinished

        if isinstance(event, RunFinished):
            self._last = event
        else:
            _print(event)

    def end(self, document: Document, exit_code: int) -> None:
        """Write the result of the command, and keep its exit code for the last event."""
        if self._last is None:
            return
        import msgspec

        from serve_eval.report.document import describe_document
        from serve_eval.schema import ResultMade

        _print(ResultMade(document=msgspec.to_builtins(describe_document(document))))
        self._last = msgspec.structs.replace(self._last, exit_code=exit_code)


def _print(event: Event) -> None:
    import msgspec

    from serve_eval.cli._streams import emit

    emit(f"{msgspec.json.encode(event).decode()}\n")
