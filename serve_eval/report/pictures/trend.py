"""Draw the values of runs over time, or over the load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from serve_eval.frozen import freeze
from serve_eval.report.pictures.picture import (
    BAD,
    BAND,
    FAINT,
    FIRST,
    GOOD,
    WARN,
    WIDTH,
    Picture,
    RulerRow,
    axis,
    colours,
    count,
    data,
    list_some,
    make_ruler,
    moments,
    shorten,
)

if TYPE_CHECKING:
    from serve_eval.schema import LoadPoint, LoadTask


MOST_RULED = 30


@freeze
class TrendPoint:
    """A run of a trend: when it began, its value and interval, its verdict, and if it alarmed."""

    at: datetime
    value: float
    interval: tuple[float, float] | None = None
    verdict: str = ""
    alarm: bool = False


@freeze
class TrendBand:
    """The reference of a trend: its value, and the worst value that passes (None: not known).

    `names` are those of both.
    """

    reference: float
    threshold: float | None = None
    names: tuple[str, str] = ("reference", "threshold")


def draw_trend(
    title: str, points: Sequence[TrendPoint], unit: str, band: TrendBand | None = None
) -> Picture | None:
    """Return the picture of the points in the order of time, or None without a point."""
    if not points:
        return None
    ordered = sorted(points, key=lambda one: one.at)
    title = shorten(title, 100)
    description = _describe(ordered, unit, band)
    return Picture(
        title,
        description,
        spec=_spec(ordered, unit, band),
        ruler=make_ruler(
            [
                RulerRow(
                    _date(one.at),
                    f"{one.value:.4g}{f' {one.verdict}' if one.verdict else ''}"
                    f"{' ALARM' if one.alarm else ''}",
                    value=one.value,
                    interval=one.interval,
                    reference=None if band is None else band.reference,
                    threshold=None if band is None else band.threshold,
                )
                for one in ordered[-MOST_RULED:]
            ]
        ),
    )


def _date(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}"


def _describe(points: Sequence[TrendPoint], unit: str, band: TrendBand | None) -> str:
    first, last = points[0], points[-1]
    low = min(points, key=lambda one: one.value)
    alarms = [one for one in points if one.alarm]
    said = [
        f"{count(len(points), 'run')} from {_date(first.at)} to {_date(last.at)} (UTC):"
        f" the first has {first.value:.4g}, the last {last.value:.4g} ({unit});"
        f" the lowest is {low.value:.4g} on {_date(low.at)}."
    ]
    if band is not None:
        limit = "" if band.threshold is None else f", {band.names[1]} {band.threshold:.4g}"
        said.append(f"{band.names[0].capitalize()} {band.reference:.4g}{limit}.")
    if alarms:
        said.append(f"{count(len(alarms), 'alarm')}, the first on {_date(alarms[0].at)}.")
    return " ".join(said)


_COLOURS = {"PASS": GOOD, "FAIL": BAD, "ERROR": BAD, "INCONCLUSIVE": WARN}
"""The colours of verdicts; others have the colour of a series."""


def _spec(points: Sequence[TrendPoint], unit: str, band: TrendBand | None) -> dict[str, object]:
    rows = [
        {
            "time": one.at.timestamp() * 1000.0,
            "value": one.value,
            "low": (one.interval or (one.value, one.value))[0],
            "high": (one.interval or (one.value, one.value))[1],
            "kind": shorten(one.verdict),
        }
        for one in points
    ]
    x = _times(points)
    kinds = {shorten(one.verdict): _COLOURS.get(one.verdict, FIRST) for one in points}
    colour = colours(kinds, shown=set(kinds) != {""})
    alarmed = [row for row, one in zip(rows, points, strict=True) if one.alarm]
    return {
        "width": WIDTH,
        "height": 200,
        "autosize": {"type": "fit", "contains": "padding"},
        "layer": [
            *_band(x, band, unit),
            {
                "data": data(rows),
                "encoding": {"x": x},
                "layer": [
                    {
                        "mark": {"type": "line", "color": FAINT},
                        "encoding": {"y": axis("value", unit)},
                    },
                    {
                        "mark": {"type": "rule", "opacity": 0.6},
                        "encoding": {
                            "y": axis("low", unit),
                            "y2": {"field": "high"},
                            "color": colour,
                        },
                    },
                    {
                        "mark": {"type": "point", "size": 50},
                        "encoding": {"y": axis("value", unit), "color": colour},
                    },
                ],
            },
            *_alarms(alarmed, x, unit),
        ],
    }


def _times(points: Sequence[TrendPoint]) -> dict[str, Any]:
    """Return the channel of the times, with some room at both ends."""
    first, last = points[0].at.timestamp() * 1000.0, points[-1].at.timestamp() * 1000.0
    room = 0.04 * (last - first) or 3_600_000.0
    return moments(first - room, last + room)


def _band(times: dict[str, Any], band: TrendBand | None, unit: str) -> list[dict[str, object]]:
    """Return the reference as a line, and what passes below or above it as an area."""
    if band is None:
        return []
    limit = band.reference if band.threshold is None else band.threshold
    area = {"reference": band.reference, "threshold": limit}
    ends = [{"time": end, **area} for end in times["scale"]["domain"]]
    line = {"type": "rule", "strokeDash": [4, 3]}
    text = {"type": "text", "align": "left", "dx": 2, "dy": -6}
    said = [{"at": band.reference, "said": f"{band.names[0]} {band.reference:.4g}"}]
    if band.threshold is not None:
        said.append({"at": band.threshold, "said": f"{band.names[1]} {band.threshold:.4g}"})
    return [
        {
            "data": data(ends),
            "mark": {"type": "area", "color": BAND},
            "encoding": {
                "x": times,
                "y": axis("reference", unit),
                "y2": {"field": "threshold"},
            },
        },
        {"data": data(said), "mark": line, "encoding": {"y": axis("at", unit)}},
        {
            "data": data(said),
            "mark": text,
            "encoding": {"y": axis("at", unit), "x": {"value": 0}, "text": {"field": "said"}},
        },
    ]


def _alarms(
    rows: Sequence[dict[str, object]], times: dict[str, Any], unit: str
) -> list[dict[str, object]]:
    if not rows:
        return []
    ring = {"type": "point", "shape": "triangle-down", "size": 110, "yOffset": -14, "color": BAD}
    return [
        {
            "data": data(rows),
            "mark": ring,
            "encoding": {"x": times, "y": axis("value", unit)},
        }
    ]


PANEL_WIDTH, PANEL_HEIGHT = 520, 110
HOLDS, BROKEN, OTHER_STATE = "holds", "broken", "not decided"
PANELS = {
    "value": "value (points)",
    "failed": "failed prompts",
    "ttft_ms": "TTFT, median (ms)",
    "right_per_s": "right answers/s",
}
_STATE_COLOURS = {HOLDS: FIRST, BROKEN: BAD, OTHER_STATE: WARN}


def draw_load(task: LoadTask) -> Picture | None:
    """Return the panels of a task over its loads, or None if no load has a value."""
    points = [point for point in task.points if point.value is not None]
    if not points:
        return None
    title = f"{shorten(task.task)}: accuracy over the requests in flight"
    said = [_describe_point(point, task) for point in points]
    description = f"{list_some(said)}. {shorten(task.words, 300)}"
    rows = [_row(point, task) for point in points]
    # A figure that is 0 at every load, such as failures, has no panel.
    known = [field for field in PANELS if any(row[field] for row in rows)]
    panels = [_panel(rows, field, last=field == known[-1]) for field in known]
    spec = {"vconcat": panels, "spacing": 8}
    ruled = [
        RulerRow(
            f"load {point.load}",
            _say(point),
            value=point.value or 0.0,
            interval=point.interval,
            reference=points[0].value,
        )
        for point in points
    ]
    return Picture(title, description, spec=spec, ruler=make_ruler(ruled))


def _say(point: LoadPoint) -> str:
    said = f"{point.value:.1f}"
    if point.interval is not None:
        said += f" ({point.interval[0]:.1f} to {point.interval[1]:.1f})"
    return f"{said}, {point.failed} failed" if point.failed else said


def _describe_point(point: LoadPoint, task: LoadTask) -> str:
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
        "encoding": {
            "x": {
                "field": "load",
                "type": "ordinal",
                "title": "requests in flight" if last else None,
                "scale": {"domain": [row["load"] for row in rows]},
                "axis": {"labelAngle": 0},
            }
        },
        "layer": list(_layers(field, kinds)),
    }


def _layers(field: str, kinds: Sequence[str]) -> Iterator[dict[str, object]]:
    colour = colours({name: _STATE_COLOURS[name] for name in _STATE_COLOURS if name in kinds})
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
