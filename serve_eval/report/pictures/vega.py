"""The parts that the specifications of all pictures share: colours, axes and the form of data.

Names of colours are CSS variables, which the page defines for light and dark. Data and labels of a
specification are values only: a text from elsewhere must never become a field name or an
expression.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

INK, FAINT, GRID = "var(--ink)", "var(--faint)", "var(--grid)"
GOOD, BAD, WARN, OTHER = "var(--good)", "var(--bad)", "var(--warn)", "var(--other)"
BAND, FIRST, SECOND = "var(--band)", "var(--series-1)", "var(--series-2)"

WIDTH = 600
"""Width of a picture with its labels, in pixels."""

_AXIS = {
    "labelColor": INK,
    "titleColor": INK,
    "tickColor": FAINT,
    "domainColor": FAINT,
    "gridColor": GRID,
    "labelLimit": 260,
    "labelFontSize": 12,
    "titleFontSize": 12,
    "labelOverlap": True,
    "titleFontWeight": "normal",
}
CONFIG = {
    "aria": False,
    "background": None,
    "font": "Arial, Liberation Sans, Helvetica, sans-serif",
    "padding": 8,
    "view": {"stroke": None},
    "axis": _AXIS,
    "axisX": {"tickCount": 8},
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "symbolStrokeColor": FAINT,
        "orient": "top",
        "title": None,
        "labelLimit": 260,
        "labelFontSize": 12,
        "columnPadding": 24,
    },
    "header": {"labelColor": INK, "titleColor": INK},
    "title": {"color": INK, "fontWeight": "normal", "fontSize": 12, "anchor": "start"},
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": INK},
    "point": {"color": INK, "filled": True, "opacity": 1},
    "line": {"color": INK},
    "bar": {"color": FIRST},
    "area": {"color": BAND},
    "tick": {"color": INK},
    "rect": {"color": BAND},
}


def data(rows: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    """Return rows as the data of a specification or of a layer."""
    return {"values": list(rows)}


def axis(field: str, title: str | None, **more: Any) -> dict[str, Any]:
    """Return the channel of a field with numbers, whose axis need not begin at zero."""
    scale = {"zero": False, "nice": True, **more.pop("scale", {})}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, **more}


def colours(
    names: Mapping[str, str], field: str = "kind", *, shown: bool = True, **legend: Any
) -> dict[str, Any]:
    """Return the colour channel of a field, with a colour for each of its values.

    `legend` are properties of the legend, if it is `shown`.
    """
    scale = {"domain": list(names), "range": list(names.values())}
    return {
        "field": field,
        "type": "nominal",
        "scale": scale,
        "title": None,
        "legend": legend if shown else None,
    }


def moments(first: float, last: float) -> dict[str, Any]:
    """Return the channel of the field `time`, in milliseconds since 1970 between two, as UTC."""
    days = (last - first) / 86_400_000.0
    near = "%b %d %H:%M" if days > 1.0 else "%H:%M" if days > 0.01 else "%H:%M:%S"
    shown = "%Y-%m" if days > 300.0 else "%b %d" if days > 6.0 else near
    return {
        "field": "time",
        "type": "temporal",
        "title": "time (UTC)",
        "scale": {"type": "utc", "domain": [first, last], "nice": False},
        "axis": {"format": shown, "tickCount": 8 if days > 6.0 else 5},
    }
