"""Draw the values of runs over time, with the reference's band and the alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from serve_eval.report.pictures.labels import count, shorten
from serve_eval.report.pictures.picture import Picture, Ruler, RulerRow, make_ruler
from serve_eval.report.pictures.vega import (
    BAD,
    BAND,
    FAINT,
    FIRST,
    GOOD,
    WARN,
    WIDTH,
    axis,
    colours,
    data,
    moments,
)

MOST_RULED = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendPoint:
    """A run of a trend: when it began, its value and interval, its verdict, and if it alarmed."""

    at: datetime
    value: float
    interval: tuple[float, float] | None = None
    verdict: str = ""
    alarm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
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
        title=title,
        description=description,
        spec=_spec(ordered, unit, band),
        ruler=_rule(ordered, band),
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


def _rows(points: Sequence[TrendPoint]) -> list[dict[str, object]]:
    return [
        {
            "time": one.at.timestamp() * 1000.0,
            "value": one.value,
            "low": (one.interval or (one.value, one.value))[0],
            "high": (one.interval or (one.value, one.value))[1],
            "kind": shorten(one.verdict),
        }
        for one in points
    ]


_COLOURS = {"PASS": GOOD, "FAIL": BAD, "ERROR": BAD, "INCONCLUSIVE": WARN}
"""The colours of verdicts; others have the colour of a series."""


def _spec(points: Sequence[TrendPoint], unit: str, band: TrendBand | None) -> dict[str, object]:
    rows, x = _rows(points), _times(points)
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


def _rule(points: Sequence[TrendPoint], band: TrendBand | None) -> Ruler | None:
    return make_ruler(
        [
            RulerRow(
                label=_date(one.at),
                text=f"{one.value:.4g}{f' {one.verdict}' if one.verdict else ''}"
                f"{' ALARM' if one.alarm else ''}",
                value=one.value,
                interval=one.interval,
                reference=None if band is None else band.reference,
                threshold=None if band is None else band.threshold,
            )
            for one in points[-MOST_RULED:]
        ]
    )
