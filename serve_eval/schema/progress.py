"""The interface for progress events."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A receiver of progress events of tasks; several tasks may run at once.

    The library itself never prints.
    """

    def begin(self, task: str, planned: int, completed: int) -> None: ...

    def update(self, task: str, done: int, failed: int, value: float | None) -> None: ...

    def end(self, task: str) -> None: ...
