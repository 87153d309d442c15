"""Choose the slices of a breakdown that a summary shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from serve_eval.report.summary.figures import figure
from serve_eval.report.summary.summary_task import SummaryTask
from serve_eval.schema import Metric

FEW = 8
"""A table with at most this number of slices is shown whole."""
SHOWN = 3
"""Number of slices that are shown of a larger table."""


@dataclass(frozen=True, slots=True)
class BreakdownSlice:
    """A slice of a breakdown with its value, and that of the reference (None: not known)."""

    name: str
    scored: int
    value: float
    before: float | None

    @property
    def badness(self) -> float:
        """Order slices by their drop in standard errors, or by their value without a reference."""
        if self.before is None:
            return -self.value
        return (self.before - self.value) * math.sqrt(self.scored)


def describe_breakdown(task: SummaryTask) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each table: the smaller ones whole, of others the worst.

    At most one table of either kind is shown, the first of the task.
    """
    metric = task.result.metric
    small = large = False
    for name, table in task.result.breakdown.items():
        slices = list(list_slices(table, task.before.get(name)))
        if len(slices) < 2:
            continue
        if len(slices) <= FEW and not small:
            small = True
            yield f"by {name}", "   ".join(_describe(one, metric) for one in slices)
        elif len(slices) > FEW and not large:
            large = True
            better = metric.higher_is_better
            worst = sorted(slices, key=lambda one: -one.badness if better else one.badness)
            said = "   ".join(_describe(one, metric) for one in worst[:SHOWN])
            yield f"by {name}", f"worst of {len(slices)}:   {said}"


def list_slices(table: object, before: object) -> Iterator[BreakdownSlice]:
    """Yield the slices of a table in which each has a value and a number of scored samples."""
    if not isinstance(table, Mapping):
        return
    earlier = before if isinstance(before, Mapping) else {}
    for name, entry in table.items():
        value, scored = _number(entry, "value"), _number(entry, "scored")
        if value is not None and scored is not None:
            yield BreakdownSlice(str(name), int(scored), value, _number(earlier.get(name), "value"))


def _number(entry: object, key: str) -> float | None:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _describe(one: BreakdownSlice, metric: Metric) -> str:
    was = "" if one.before is None else f" (was {_brief(one.before, metric)})"
    return f"{one.name}: {_brief(one.value, metric)}{was}"


def _brief(value: float, metric: Metric) -> str:
    return figure(value, metric).removesuffix(".0") if value < 10.0 else f"{value:.0f}"
