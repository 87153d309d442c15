"""Precision, recall and F1 of a choice that has a right side, such as to call a tool or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TriggerCounts:
    """Numbers of calls: those that were wanted, those that were not, and those that are missing."""

    right: int
    unwanted: int
    missed: int

    @property
    def precision(self) -> float:
        """The share of what was done that was wanted; 1 if nothing was done."""
        return _divide(self.right, self.right + self.unwanted)

    @property
    def recall(self) -> float:
        """The share of what was wanted that was done; 1 if nothing was wanted."""
        return _divide(self.right, self.right + self.missed)

    @property
    def f1(self) -> float:
        """The harmonic mean of the two: 2 right / (2 right + unwanted + missed)."""
        return _divide(2 * self.right, 2 * self.right + self.unwanted + self.missed)


def count_trigger(choices: Iterable[tuple[bool, bool]]) -> TriggerCounts:
    """Return the counts of (wanted, done) pairs."""
    right = unwanted = missed = 0
    for wanted, done in choices:
        right += wanted and done
        unwanted += done and not wanted
        missed += wanted and not done
    return TriggerCounts(right, unwanted, missed)


def _divide(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
