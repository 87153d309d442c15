"""Define a picture of a page, drawn with all others in one process.

Names of colours are CSS variables, which the page defines for light and dark. Data and labels of a
specification are values only: a text from elsewhere must never become a field name or an
expression.

V8, which draws them, ends its process where it cannot reserve 64 GiB of addresses, as under
`ulimit -v`. The process that holds the verdict never loads it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from html import escape
from importlib.metadata import PackageNotFoundError, requires
from itertools import zip_longest
from typing import Any

from serve_eval.frozen import freeze, freeze_places
from serve_eval.processes.child_process import LimitedEnd
from serve_eval.report.drawing_process import can_draw, draw_lines
from serve_eval.report.text import clean

STEPS = 10
"""A ruler has at most this number of steps between its ends."""


@freeze_places
class RulerRow:
    """One line of a ruler: a dot at its value, a line for its interval, and marks.

    `text` is the value in words.
    """

    label: str
    text: str
    _: KW_ONLY
    value: float
    interval: tuple[float, float] | None = None
    reference: float | None = None
    threshold: float | None = None

    @property
    def places(self) -> list[float]:
        """Everything that the row shows."""
        marks = (self.value, *(self.interval or ()), self.reference, self.threshold)
        return [x for x in marks if x is not None]


@freeze
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


@freeze_places
class Picture:
    """A picture with its title and its description for screen readers.

    `spec` is its specification of Vega-Lite, which a process of its own draws when the page is
    written; `svg` is the drawing, or one that needs no library. It names colours only as CSS
    variables, so that it serves the light and the dark page. Without a drawing, the page has the
    `ruler` (None: the page shows the same elsewhere).
    """

    title: str
    description: str
    _: KW_ONLY
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


LONGEST = 32
"""Characters of a label. Longer texts are cut."""


def shorten(text: str, longest: int = LONGEST) -> str:
    """Return a text on one line, without control characters and halves of surrogate pairs."""
    whole = text.encode(errors="replace").decode()
    flat = " ".join(clean(whole).split())
    return flat if len(flat) <= longest else f"{flat[: longest - 3]}..."


def shorten_all(texts: Sequence[str]) -> list[str]:
    """Return short texts that stay different: those that became equal are numbered."""
    found: list[str] = []
    taken: set[str] = set()
    for text in texts:
        short, number = shorten(text) or "(no name)", 1
        free = short
        while free in taken:
            number += 1
            free = f"{short} ({number})"
        taken.add(free)
        found.append(free)
    return found


def count(n: int, one: str) -> str:
    """Return a count with its noun: "1 run", "1,319 runs"."""
    return f"{n:,} {one}{'' if n == 1 else 's'}"


def list_some(parts: Sequence[str], most: int = 60) -> str:
    """Return the parts as one text; of many, the first ones and the number of the others."""
    more = len(parts) - most
    return "; ".join(parts[:most]) + (f"; and {more:,} more" if more > 0 else "")


_ID = re.compile(r'\bid="([^"]+)"')
_OPENING = re.compile(r"<svg\b[^>]*>")
_PARTS = re.compile(r' (?:role="graphics-[a-z]+"|aria-roledescription="[^"]*")')
"""Roles of the parts, which have no texts: the whole has a title and a description."""
_SIZE = re.compile(r'\b(?:viewBox|width|height)="[^"]+"')


def name_extra() -> str:
    """Return the line that says how to get pictures in place of rulers."""
    try:
        lines = requires("serve-eval") or []
    except PackageNotFoundError:
        lines = []
    wanted = (one.partition(";") for one in lines if "vl-convert" in one)
    name = next((need.strip() for need, _, extra in wanted if "page" in extra), "vl-convert-python")
    return f"The extra page draws more pictures: pip install '{name}'"


def draw_all(
    pictures: Sequence[Picture], notify: Callable[[str], object] = lambda line: None
) -> list[Picture]:
    """Return the pictures with their drawings, or as they were where drawing failed.

    `notify` gets one warning if the process was lost. Nothing is drawn without the package, or if
    pictures are unwanted. The process may have been started before: see `drawing_ahead`.
    """
    waiting = {i: one.spec for i, one in enumerate(pictures) if one.spec and one.svg is None}
    drawn = list(pictures)
    if not waiting or not can_draw():
        return drawn
    whole = [json.dumps({**spec, "config": CONFIG}) for spec in waiting.values()]
    ended = draw_lines("".join(f"{one}\n" for one in whole).encode(), len(whole))
    found = _read(ended.written)
    for i, text, svg in zip_longest(waiting, whole, found[: len(whole)]):
        if svg is not None:
            one = pictures[i]
            name = f"{one.title}\0{one.description}\0{text}".encode(errors="replace")
            drawn[i] = replace(one, svg=_finish(svg, hashlib.sha256(name).hexdigest()[:10], one))
    lost = sum(drawn[i].svg is None for i in waiting)
    if lost:
        notify(_warn(lost, len(waiting), ended))
    return drawn


def _read(written: bytes) -> list[str | None]:
    """Return the drawings; a last line that was cut off is left out."""
    found: list[str | None] = []
    for line in written.splitlines():
        try:
            svg = json.loads(line)
        except ValueError:
            break
        found.append(svg if isinstance(svg, str) and _OPENING.search(svg) else None)
    return found


def _warn(lost: int, asked: int, ended: LimitedEnd) -> str:
    said = f"warning: {lost} of {asked} pictures were not drawn, the page shows rulers instead"
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if not ended.why:
        return said
    if limit == resource.RLIM_INFINITY:
        return f"{said}: the process that draws ended early, {ended.why}"
    return (
        f"{said}: the process that draws ended early, {ended.why}. It reserves 65 GiB of addresses,"
        f" and ulimit -v allows {limit / 2**30:.0f} GiB."
    )


def _finish(svg: str, name: str, picture: Picture) -> str:
    return _describe(_rename(svg, name), name, picture.title, picture.description)


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
