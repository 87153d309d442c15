"""Show the progress of several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serve_eval.schema import FailureKind, Progress


@dataclass(frozen=True, slots=True)
class Labelled:
    """Progress of one side, with its label before the task name."""

    shown: Progress
    label: str

    def begin(self, task: str, planned: int, completed: int) -> None:
        self.shown.begin(f"{self.label}: {task}", planned, completed)

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None:
        self.shown.update(f"{self.label}: {task}", done, failed, value)

    def end(self, task: str) -> None:
        self.shown.end(f"{self.label}: {task}")
