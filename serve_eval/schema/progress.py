"""The interface for progress events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from serve_eval.schema.exchange import FailureKind


class Progress(Protocol):
    """A receiver of progress events of tasks; several tasks may run at once.

    `failed` counts the missing answers by kind. The library itself never prints.
    """

    def begin(self, task: str, planned: int, completed: int) -> None: ...

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None: ...

    def end(self, task: str) -> None: ...
