"""Draw what a load does to a task: its value, failures, times and right answers per second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from serve_eval.report.pictures.labels import list_some, shorten
from serve_eval.report.pictures.picture import Picture, RulerRow, make_ruler
from serve_eval.report.pictures.vega import BAD, FIRST, WARN, axis, colours, data

if TYPE_CHECKING:
    from serve_eval.schema import LoadPoint, LoadTask

PANEL_WIDTH, PANEL_HEIGHT = 520, 110
HOLDS, BROKEN, OTHER_STATE = "holds", "broken", "not decided"
PANELS = {
    "value": "value (points)",
    "failed": "failed prompts",
    "ttft_ms": "TTFT, median (ms)",
    "right_per_s": "right answers/s",
}
_COLOURS = {HOLDS: FIRST, BROKEN: BAD, OTHER_STATE: WARN}


def draw_load(task: LoadTask) -> Picture | None:
    """Return the panels of a task over its loads, or None if no load has a value."""
    points = [point for point in task.points if point.value is not None]
    if not points:
        return None
    title = f"{shorten(task.task)}: accuracy over the requests in flight"
    said = [_describe(point, task) for point in points]
    description = f"{list_some(said)}. {shorten(task.words, 300)}"
    rows = [_row(point, task) for point in points]
    # A figure that is 0 at every load, such as failures, has no panel.
    known = [field for field in PANELS if any(row[field] for row in rows)]
    panels = [_panel(rows, field, last=field == known[-1]) for field in known]
    spec = {"vconcat": panels, "spacing": 8}
    ruled = [
        RulerRow(
            label=f"load {point.load}",
            text=_say(point),
            value=point.value or 0.0,
            interval=point.interval,
            reference=points[0].value,
        )
        for point in points
    ]
    return Picture(title=title, description=description, spec=spec, ruler=make_ruler(ruled))


def _say(point: LoadPoint) -> str:
    said = f"{point.value:.1f}"
    if point.interval is not None:
        said += f" ({point.interval[0]:.1f} to {point.interval[1]:.1f})"
    return f"{said}, {point.failed} failed" if point.failed else said


def _describe(point: LoadPoint, task: LoadTask) -> str:
    parts = [f"load {point.load}: {_say(point)}"]
    if point.ttft_s and "p50" in point.ttft_s:
        parts.append(f"TTFT {1000.0 * point.ttft_s['p50']:.0f} ms")
    if point.right_per_s is not None:
        parts.append(f"{point.right_per_s:.1f} right answers per second")
    if point.load in task.broken:
        parts.append(BROKEN)
    return ", ".join(parts)


def _state(point: LoadPoint, task: LoadTask) -> str:
    if point.load in task.broken or point.load in task.failing:
        return BROKEN
    return HOLDS if point.outcome in ("lowest", "holds") else OTHER_STATE


def _row(point: LoadPoint, task: LoadTask) -> dict[str, object]:
    low, high = point.interval or (point.value, point.value)
    ttft = (point.ttft_s or {}).get("p50")
    return {
        "load": point.load,
        "kind": _state(point, task),
        "value": point.value,
        "low": low,
        "high": high,
        "failed": point.failed,
        "ttft_ms": None if ttft is None else 1000.0 * ttft,
        "right_per_s": point.right_per_s,
    }


def _panel(rows: Sequence[dict[str, object]], field: str, *, last: bool) -> dict[str, object]:
    """Return the panel of one figure; the last one has the title of the loads."""
    kinds = sorted({str(row["kind"]) for row in rows})
    return {
        "width": PANEL_WIDTH,
        "height": PANEL_HEIGHT,
        "data": data([row for row in rows if row[field] is not None]),
        "encoding": {"x": _loads(rows, titled=last)},
        "layer": list(_layers(field, kinds)),
    }


def _layers(field: str, kinds: Sequence[str]) -> Iterator[dict[str, object]]:
    colour = colours({name: _COLOURS[name] for name in _COLOURS if name in kinds})
    title = PANELS[field]
    scale = {} if field == "value" else {"scale": {"zero": True}}
    if field == "value":
        ends = {"y": axis("low", title), "y2": {"field": "high"}, "color": colour}
        yield {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": ends}
    yield {
        "mark": {"type": "line", "opacity": 0.5},
        "encoding": {"y": axis(field, title, **scale)},
    }
    yield {
        "mark": {"type": "point", "size": 60},
        "encoding": {"y": axis(field, title, **scale), "color": colour},
    }


def _loads(rows: Sequence[dict[str, object]], *, titled: bool) -> dict[str, object]:
    """Return the channel of the loads, at equal steps, since they are mostly powers of a number."""
    return {
        "field": "load",
        "type": "ordinal",
        "title": "requests in flight" if titled else None,
        "scale": {"domain": [row["load"] for row in rows]},
        "axis": {"labelAngle": 0},
    }
