"""Draw an SVG from a specification of Vega-Lite, by the package vl-convert-python.

Names of colours are CSS variables, which the page defines for light and dark. Data and labels of a
specification are values only: a text from elsewhere must never become a field name or an
expression.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

INK, FAINT, GRID = "var(--ink)", "var(--faint)", "var(--grid)"
GOOD, BAD, WARN, OTHER = "var(--good)", "var(--bad)", "var(--warn)", "var(--other)"
BAND, FIRST, SECOND = "var(--band)", "var(--series-1)", "var(--series-2)"

UNWANTED = "SERVE_EVAL_NO_PICTURES"
"""The variable with which pages have bars instead, which saves more than a second for each page."""
WIDTH = 600
"""Width of a picture with its labels, in pixels."""
Spec = Mapping[str, Any]

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
_CONFIG = {
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
_ID = re.compile(r'\bid="([^"]+)"')
_OPENING = re.compile(r"<svg\b[^>]*>")
_PARTS = re.compile(r' (?:role="graphics-[a-z]+"|aria-roledescription="[^"]*")')
"""Roles of the parts, which have no texts: the whole has a title and a description."""
_SIZE = re.compile(r'\b(?:viewBox|width|height)="[^"]+"')


def draw_svg(spec: Spec, *, title: str, description: str) -> str | None:
    """Return the SVG of a specification; None without the package that draws it, or if unwanted.

    It has a role, a title and a description, no script and no address, and its ids are its own.
    """
    if os.environ.get(UNWANTED):
        return None
    try:
        import vl_convert
    except ImportError:
        return None
    whole = json.dumps({**spec, "config": _CONFIG})
    drawn: str = vl_convert.vegalite_to_svg(whole, allowed_base_urls=[])
    name = hashlib.sha256(f"{title}\0{description}\0{whole}".encode()).hexdigest()[:10]
    return _describe(_rename(drawn, name), name, title, description)


def _rename(svg: str, name: str) -> str:
    """Return an SVG whose ids differ from those of every other picture of a page."""
    ids = {found: f"p{name}-{i}" for i, found in enumerate(dict.fromkeys(_ID.findall(svg)))}
    for old, new in ids.items():
        svg = svg.replace(f'id="{old}"', f'id="{new}"').replace(f"url(#{old})", f"url(#{new})")
    return svg


def _describe(svg: str, name: str, title: str, description: str) -> str:
    """Return an SVG with an opening tag of its own, and texts for screen readers."""
    opening = _OPENING.search(svg)
    assert opening is not None
    size = " ".join(_SIZE.findall(opening[0]))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" overflow="visible"'
        f' aria-labelledby="p{name}-title p{name}-text">'
        f'<title id="p{name}-title">{escape(title)}</title>'
        f'<desc id="p{name}-text">{escape(description)}</desc>'
    )
    return head + _PARTS.sub("", svg[opening.end() :])


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
