"""Prepare what the end of a run needs when half of its answers are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from serve_eval.schema import FailureKind, Progress


class HalfWay:
    """Pass progress on, and call `act` once: when half of what is asked is done, or a task ends.

    So nothing delays the first request, and no process waits for hours during a long run.
    """

    def __init__(self, shown: Progress, act: Callable[[], object]) -> None:
        self._shown, self._act, self._acted = shown, act, False
        self._planned = self._before = 0
        self._done: dict[str, int] = {}

    def begin(self, task: str, planned: int, completed: int) -> None:
        self._shown.begin(task, planned, completed)
        self._planned, self._before = self._planned + planned, self._before + completed
        self._done[task] = completed

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None:
        self._shown.update(task, done, failed, value)
        if not self._acted:
            self._done[task] = done + sum(failed.values())
            asked = self._planned - self._before
            if 2 * (sum(self._done.values()) - self._before) >= asked > 0:
                self._act_once()

    def end(self, task: str) -> None:
        self._shown.end(task)
        self._act_once()

    def _act_once(self) -> None:
        if not self._acted:
            self._acted = True
            self._act()
