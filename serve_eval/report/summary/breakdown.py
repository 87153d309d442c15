"""Choose the slices of a breakdown that a summary shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
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

    At most one table of either kind is shown: the one whose slices differ most. A last row names
    the others, which only the page has.
    """
    metric = task.result.metric
    tables = {
        name: list(list_slices(table, task.before.get(name)))
        for name, table in task.result.breakdown.items()
    }
    several = [(name, slices) for name, slices in tables.items() if len(slices) > 1]
    shown = [
        max(alike, key=lambda one: measure_spread(one[1]))
        for large in (False, True)
        if (alike := [one for one in several if (len(one[1]) > FEW) is large])
    ]
    for name, slices in shown:
        if len(slices) <= FEW:
            yield f"by {name}", "   ".join(_describe(one, metric) for one in slices)
        else:
            better = metric.higher_is_better
            worst = sorted(slices, key=lambda one: -one.badness if better else one.badness)
            said = "   ".join(_describe(one, metric) for one in worst[:SHOWN])
            yield f"by {name}", f"worst of {len(slices)}:   {said}"
    if left := [name for name, _ in several if name not in dict(shown)]:
        yield "by ...", f"not shown here: {', '.join(left)}"


def measure_spread(slices: Sequence[BreakdownSlice]) -> float:
    """Return the variance between slices, in squared points times samples.

    By chance alone it is the same on average for any field, however many slices that has. If the
    reference of every slice is known, it is that of the changes.
    """
    known = all(one.before is not None for one in slices)
    changes = [one.value - (one.before or 0.0) * known for one in slices]
    total = sum(one.scored for one in slices)
    if total == 0 or len(slices) < 2:
        return 0.0
    mean = math.fsum(one.scored * d for one, d in zip(slices, changes, strict=True)) / total
    between = (one.scored * (d - mean) ** 2 for one, d in zip(slices, changes, strict=True))
    return round(math.fsum(between) / (len(slices) - 1), 9)


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
