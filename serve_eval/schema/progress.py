"""Define who receives progress events."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives progress events of tasks; several may be under way. The library itself never
    prints.
    """

    def begin(self, task: str, planned: int, completed: int) -> None: ...

    def update(self, task: str, done: int, failed: int, value: float | None) -> None: ...

    def end(self, task: str) -> None: ...
