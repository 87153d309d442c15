"""Draw a value, its interval, the threshold and the reference on one line of text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console

WINDOWS = (5.0, 10.0, 20.0, 50.0, 100.0)
"""Widths of the shown range, in points. The smallest that leaves room is used."""
ROOM = 1.4
"""The shown range is at least this often as wide as what it must show."""
TICKS = 10


@dataclass(frozen=True, slots=True)
class Marks:
    """The characters of the line, and the one between two commands."""

    value: str
    reference: str
    threshold: str
    line: str
    tick: str
    interval: str
    between: str


UNICODE = Marks("●", "▲", "┃", "─", "┴", "━", "·")
ASCII = Marks("o", "^", "|", "-", "+", "=", ";")


def choose_marks(console: Console) -> Marks:
    """Return the characters that the output can show."""
    return UNICODE if console.encoding.lower().startswith("utf") else ASCII


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisPoints:
    """The marks on the line, in points: a value with its interval, a threshold and a reference."""

    value: float
    interval: tuple[float, float] | None = None
    threshold: float | None = None
    reference: float | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the shown range, on a tick, within 0 to 100."""
        marks = (self.value, *(self.interval or ()), self.threshold, self.reference)
        return _window(x for x in marks if x is not None)


def draw_axis(width: int, marks: Marks, points: AxisPoints) -> str:
    """Return the line: "70 ┴──┃─▲━●━┴── 90".

    `width` is that of the text without its labels; values are in points out of 100. What lies on
    the same character is drawn in the order threshold, reference, value; the last one stays.
    """
    low, high = points.ends
    places = max(TICKS + 1, width)

    def place(point: float) -> int:
        return round((min(max(point, low), high) - low) / (high - low) * (places - 1))

    cells = [marks.line] * places
    for i in range(TICKS + 1):
        cells[round(i * (places - 1) / TICKS)] = marks.tick
    if points.interval is not None:
        first, last = map(place, points.interval)
        cells[first : last + 1] = [marks.interval] * (last + 1 - first)
    for x, mark in ((points.threshold, marks.threshold), (points.reference, marks.reference)):
        if x is not None:
            cells[place(x)] = mark
    cells[place(points.value)] = marks.value
    return f"{low:g} {''.join(cells)} {high:g}"


def _window(shown: Iterable[float]) -> tuple[float, float]:
    """Return the ends of a range that holds everything, on a tick, within 0 to 100."""
    values = list(shown)
    least, most = max(0.0, min(values)), min(100.0, max(values))
    for width in WINDOWS:
        step = width / TICKS
        low = math.floor((least + most - width) / 2.0 / step) * step
        low = min(max(low, 0.0), 100.0 - width)
        if width >= ROOM * (most - least) and low <= least and most <= low + width:
            return low, low + width
    return 0.0, 100.0
