"""A picture of a page: what is drawn, its description, and a ruler that shows the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STEPS = 10
"""A ruler has at most this number of steps between its ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulerRow:
    """One line of a ruler: a dot at its value, a line for its interval, and marks.

    `text` is the value in words.
    """

    label: str
    text: str
    value: float
    interval: tuple[float, float] | None = None
    reference: float | None = None
    threshold: float | None = None

    @property
    def places(self) -> list[float]:
        """Everything that the row shows."""
        marks = (self.value, *(self.interval or ()), self.reference, self.threshold)
        return [x for x in marks if x is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruler:
    """Rows over one axis from `low` to `high`, with a tick at the end of each of its `steps`.

    It need not include 0, since it has no bars.
    """

    low: float
    high: float
    rows: Sequence[RulerRow]
    steps: int = STEPS

    @property
    def ticks(self) -> list[float]:
        """The places of the ticks, from 0 to 100."""
        return [round(100.0 * i / self.steps, 2) for i in range(self.steps + 1)]

    def place(self, value: float) -> float:
        """Return the place of a value, from 0 to 100."""
        share = (value - self.low) / (self.high - self.low)
        return round(100.0 * min(1.0, max(0.0, share)), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture with its title and its description for screen readers.

    `spec` is its specification of Vega-Lite, which a process of its own draws when the page is
    written; `svg` is the drawing, or one that needs no library. It names colours only as CSS
    variables, so that it serves the light and the dark page. Without a drawing, the page has the
    `ruler` (None: the page shows the same elsewhere).
    """

    title: str
    description: str
    spec: Mapping[str, Any] | None = None
    svg: str | None = None
    ruler: Ruler | None = None


def make_ruler(rows: Sequence[RulerRow]) -> Ruler | None:
    """Return the ruler of rows with ends that are round numbers, or None without a row."""
    places = [x for row in rows for x in row.places if math.isfinite(x)]
    if not places:
        return None
    low, high = min(places), max(places)
    size = max(abs(low), abs(high))
    # A span that is lost in rounding counts as one value.
    step = _find_step(high - low if high - low > max(1e-9 * size, 1e-12) else max(size, 1e-9))
    first, last = math.floor(low / step), math.ceil(high / step)
    if first == last:
        first, last = first - 1, last + 1
    return Ruler(low=first * step, high=last * step, rows=rows, steps=last - first)


def _find_step(span: float) -> float:
    """Return 1, 2 or 5 times a power of ten, so that few steps are as long as a span."""
    power = 10.0 ** math.floor(math.log10(span / STEPS))
    return next(power * n for n in (1.0, 2.0, 5.0, 10.0) if power * n * STEPS >= span * 0.999)
