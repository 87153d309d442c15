"""Progress of a run: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY_S = 5.0


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


class BarProgress:
    """Done, failed, running value, rate and time left, redrawn at most four times a second."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, task: str, planned: int, had: int) -> None:
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
        self._bar.add_task(task, total=planned, failed=0, value="-", rate=0.0)
        self._bar.start()
        self._began, self._drawn, self._before = time.monotonic(), 0.0, had
        if had:
            self._console.print(f"{task}: {had} answers kept", highlight=False, markup=False)

    def update(self, done: int, failed: int, value: float | None) -> None:
        self._last = (done, failed, value)
        now = time.monotonic()
        if now - self._drawn >= 0.25:
            self._drawn = now
            self._draw(now)

    def _draw(self, now: float) -> None:
        done, failed, value = self._last
        rate = (done - self._before) / max(now - self._began, 1e-9)
        self._bar.update(self._bar.task_ids[0], completed=done + failed, failed=failed, value=_value(value), rate=rate)

    def end(self) -> None:
        self._draw(time.monotonic())
        self._bar.stop()


class PlainProgress:
    """One line at the beginning, every few seconds and at the end of each task."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, task: str, planned: int, had: int) -> None:
        self._task, self._planned, self._before = task, planned, had
        self._began = self._said = time.monotonic()
        if had:
            self._console.print(f"{task}: {had} answers kept", highlight=False, markup=False)

    def update(self, done: int, failed: int, value: float | None) -> None:
        self._last = (done, failed, value)
        now = time.monotonic()
        if now - self._said >= PLAIN_EVERY_S:
            self._say(now)

    def _say(self, now: float) -> None:
        self._said = now
        done, failed, value = self._last
        rate = (done - self._before) / max(now - self._began, 1e-9)
        left = f", {max(0, self._planned - done - failed) / rate:.0f} s left" if rate > 0 else ""
        self._console.print(
            f"{self._task}: {done}/{self._planned} done, {failed} failed, value {_value(value)}, {rate:.0f}/s{left}",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )

    def end(self) -> None:
        self._say(time.monotonic())


def progress(console: Console) -> BarProgress | PlainProgress:
    """The form that fits where the output goes."""
    return BarProgress(console) if console.is_terminal else PlainProgress(console)
