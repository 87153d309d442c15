"""Draw values as points: with their intervals, or against another value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from serve_eval.frozen import freeze
from serve_eval.report.pictures.picture import (
    BAD,
    FAINT,
    FIRST,
    SECOND,
    WIDTH,
    Picture,
    Ruler,
    RulerRow,
    axis,
    colours,
    count,
    data,
    list_some,
    make_ruler,
    shorten,
    shorten_all,
)
from serve_eval.report.summary.figures import add_sign, figure
from serve_eval.schema import Metric, PairedComparison
from serve_eval.stats.intervals import INTERVAL_ALPHA, wilson

MOST_ROWS = 60
"""Rows of a picture. Of more, the first ones are drawn."""


@freeze
class IntervalRow:
    """A name with a value and its interval, and with those of the second side if it has one."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    before: float | None = None
    before_interval: tuple[float, float] | None = None


def draw_intervals(
    title: str,
    rows: Sequence[IntervalRow],
    metric: Metric,
    *,
    sides: tuple[str, str] = ("this run", "reference"),
) -> Picture | None:
    """Return the picture of the rows in their order, or None without a row."""
    if not rows:
        return None
    shown = rows[:MOST_ROWS]
    names = shorten_all([row.name for row in shown])
    title = shorten(title, 100)
    more = f" {len(shown)} of {len(rows):,} are drawn." if len(rows) > len(shown) else ""
    said = [_describe(name, row, metric, sides[1]) for name, row in zip(names, shown, strict=True)]
    description = f"Values with 95 % intervals: {list_some(said)}.{more}"
    return Picture(
        title,
        description,
        spec=_spec(names, shown, sides),
        ruler=make_ruler(
            [
                RulerRow(
                    name,
                    _say(row.value, row.interval, metric),
                    value=row.value,
                    interval=row.interval,
                    reference=row.before,
                )
                for name, row in zip(names, shown, strict=True)
            ]
        ),
    )


def _describe(name: str, row: IntervalRow, metric: Metric, other: str) -> str:
    said = f"{name} {_say(row.value, row.interval, metric)}"
    if row.before is None:
        return said
    return f"{said}, {other} {_say(row.before, row.before_interval, metric)}"


def _say(value: float, ends: tuple[float, float] | None, metric: Metric) -> str:
    said = figure(value, metric)
    if ends is None:
        return said
    return f"{said} ({figure(ends[0], metric)} to {figure(ends[1], metric)})"


def _spec(
    names: Sequence[str], rows: Sequence[IntervalRow], sides: tuple[str, str]
) -> dict[str, object]:
    pairs = zip(names, rows, strict=True)
    table = [entry for name, row in pairs for entry in _pair(name, row, sides)]
    both = any(row.before is not None for row in rows)
    kinds = {sides[0]: FIRST, sides[1]: SECOND} if both else {sides[0]: FIRST}
    y = {"field": "name", "type": "nominal", "sort": None, "title": None}
    # Each name has a line for each side.
    offset = {"yOffset": {"field": "side", "scale": {"domain": list(kinds)}}} if both else {}
    return {
        "width": WIDTH,
        "height": {"step": 9, "for": "offset"} if both else {"step": 16},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": data(table),
        "encoding": {
            "y": y,
            **offset,
            "color": colours(kinds, "side", shown=both),
        },
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"x": axis("low", "value"), "x2": {"field": "high"}},
            },
            {"mark": {"type": "point", "size": 45}, "encoding": {"x": axis("value", "value")}},
        ],
    }


def _pair(name: str, row: IntervalRow, sides: tuple[str, str]) -> Iterator[dict[str, object]]:
    for side, value, ends in (
        (sides[0], row.value, row.interval),
        (sides[1], row.before, row.before_interval),
    ):
        if value is not None:
            low, high = ends or (value, value)
            yield {"name": name, "side": side, "value": value, "low": low, "high": high}


def bound_mean(value: float, n: int, metric: Metric) -> tuple[float, float] | None:
    """Return the interval of a mean over n prompts, or None if its scores have no bounds."""
    lo, hi = metric.lo, metric.hi
    if lo is None or hi is None or hi <= lo or not metric.scale:
        return None
    share = min(1.0, max(0.0, (value / metric.scale - lo) / (hi - lo)))
    low, high = wilson(share * n, n, INTERVAL_ALPHA)
    return metric.scale * (lo + (hi - lo) * low), metric.scale * (lo + (hi - lo) * high)


def draw_change(task: str, paired: PairedComparison, metric: Metric) -> Picture | None:
    """Return the picture of the change in points (negative is worse), if it has an interval."""
    if paired.interval is None:
        return None
    low, high = paired.interval
    shown, ends = add_sign(paired.difference, metric), [add_sign(x, metric) for x in (low, high)]
    margin = figure(paired.margin, metric)
    title = f"{shorten(task)}: change on the same prompts"
    description = (
        f"The change is {shown} ({ends[0]} to {ends[1]} with 95 % confidence) over"
        f" {paired.pairs:,} prompts; negative is worse. The margin is {margin}."
    )
    levels = [
        {"at": 0.0, "said": "no change", "colour": FAINT},
        {"at": -paired.margin, "said": f"margin -{margin}", "colour": BAD},
    ]
    spec = {
        "width": WIDTH,
        "height": 48,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "layer": [
            *(_level(one) for one in levels),
            {
                "data": data([{"low": low, "high": high}]),
                "mark": {"type": "rule", "strokeWidth": 3, "color": FIRST},
                "encoding": {
                    "x": axis("low", "change (points)"),
                    "x2": {"field": "high"},
                    "y": {"value": 32},
                },
            },
            {
                "data": data([{"value": paired.difference}]),
                "mark": {"type": "point", "size": 90, "color": FIRST},
                "encoding": {"x": axis("value", "change (points)"), "y": {"value": 32}},
            },
        ],
    }
    row = RulerRow(
        "change",
        f"{shown} ({ends[0]} to {ends[1]}); ▲ no change, ┃ margin -{margin}",
        value=paired.difference,
        interval=(low, high),
        reference=0.0,
        threshold=-paired.margin,
    )
    return Picture(title, description, spec=spec, ruler=make_ruler([row]))


def _level(one: dict[str, object]) -> dict[str, object]:
    return {
        "data": data([one]),
        "encoding": {"x": axis("at", "change (points)")},
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [4, 3], "color": one["colour"]}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4},
                "encoding": {"text": {"field": "said"}, "y": {"value": 10}},
            },
        ],
    }


NAMED = 6
"""Points with a label: those that are farthest from the diagonal."""
MOST_POINTS = 400
"""Points of a picture. Of more, evenly chosen ones are drawn."""


@freeze
class ScatterPoint:
    """A name with two values, and the number of samples behind them."""

    name: str
    x: float
    y: float
    n: int = 1


def draw_against(
    title: str, points: Sequence[ScatterPoint], names: tuple[str, str], *, named: bool = True
) -> Picture | None:
    """Return the picture of two sides of the same things, with the line on which they are equal.

    `names` are those of the sides x and y. None without a point.
    """
    if not points:
        return None
    title, sides = shorten(title, 100), (shorten(names[0]), shorten(names[1]))
    ordered = sorted(points, key=lambda one: one.y - one.x)
    above = sum(one.y > one.x for one in points)
    below = sum(one.y < one.x for one in points)
    said = [
        f"{shorten(one.name)} {one.x:.4g} to {one.y:.4g}"
        for one in ordered[:NAMED]
        if one.y < one.x
    ]
    lowest = f" Largest falls: {'; '.join(said)}." if said and named else ""
    description = (
        f"{count(len(points), 'point')}: {below:,} lower in {sides[1]} than in {sides[0]},"
        f" {above:,} higher.{lowest}"
    )
    drawn = _thin(points)
    far = sorted(drawn, key=lambda one: -abs(one.y - one.x) * math.sqrt(one.n))[:NAMED]
    labelled = [one for one in far if one.x != one.y] if named else []
    low = min(min(one.x, one.y) for one in points)
    high = max(max(one.x, one.y) for one in points)
    pad = 0.04 * (high - low) or 1.0
    scale = {"domain": [low - pad, high + pad], "nice": False}
    spec = _draw_points(
        [
            _line([(low, low), (high, high)], _axes(sides, scale, scale)),
            _points(drawn, _axes(sides, scale, scale), alone=named),
            *_labels(labelled, _axes(sides, scale, scale)),
        ],
        square=True,
    )
    return Picture(title, description, spec=spec, ruler=_rule_fallen(ordered))


def draw_attribute(
    title: str, points: Sequence[ScatterPoint], names: tuple[str, str]
) -> Picture | None:
    """Return the picture of a value over an attribute with numbers; None without a point.

    `names` are those of the axes. An attribute whose numbers differ much has a logarithmic axis.
    """
    if not points:
        return None
    title, sides = shorten(title, 100), (shorten(names[0]), shorten(names[1]))
    xs = [one.x for one in points]
    log = min(xs) > 0.0 and max(xs) / min(xs) >= 10.0
    said = [f"{shorten(one.name)}: {one.x:.4g}, {one.y:.4g}" for one in points]
    description = f"{sides[1]} over {sides[0]}: {list_some(said)}."
    least, high = min(one.y for one in points), max(one.y for one in points)
    pad = 0.12 * (high - least) or 1.0
    up: dict[str, object] = {"domain": [least - pad, high + pad], "nice": False}
    axes = _axes(sides, {"type": "log" if log else "linear"}, up)
    named = _labels(points, axes) if len(points) <= NAMED else ()
    spec = _draw_points([_points(_thin(points), axes), *named], square=False)
    labels = shorten_all([one.name for one in points])
    rows = [
        RulerRow(name, f"{one.y:.4g}", value=one.y)
        for name, one in zip(labels, points, strict=True)
    ]
    return Picture(title, description, spec=spec, ruler=make_ruler(rows))


def _thin(points: Sequence[ScatterPoint]) -> Sequence[ScatterPoint]:
    step = -(-len(points) // MOST_POINTS)
    return points[::step]


def _draw_points(layers: Sequence[dict[str, object]], *, square: bool) -> dict[str, object]:
    return {
        "width": 420 if square else WIDTH,
        "height": 380 if square else 240,
        "autosize": {"type": "fit", "contains": "padding"},
        "layer": list(layers),
    }


def _axes(
    names: tuple[str, str], across: dict[str, object], up: dict[str, object]
) -> dict[str, object]:
    return {"x": axis("x", names[0], scale=across), "y": axis("y", names[1], scale=up)}


def _points(
    points: Sequence[ScatterPoint], axes: dict[str, object], *, alone: bool = True
) -> dict[str, object]:
    rows = [{"x": one.x, "y": one.y} for one in points]
    mark = {"type": "point", "size": 50, "color": FIRST, "opacity": 0.8 if alone else 0.35}
    return {"data": data(rows), "mark": mark, "encoding": axes}


def _line(ends: Sequence[tuple[float, float]], axes: dict[str, object]) -> dict[str, object]:
    return {
        "data": data([{"x": x, "y": y} for x, y in ends]),
        "mark": {"type": "line", "strokeDash": [4, 3], "color": FAINT},
        "encoding": axes,
    }


def _labels(points: Sequence[ScatterPoint], axes: dict[str, object]) -> Iterator[dict[str, object]]:
    """Yield the labels, on the side of a point on which the picture has room."""
    middle = sum(one.x for one in points) / len(points) if points else 0.0
    for right in (True, False):
        rows = [
            {"x": one.x, "y": one.y, "said": shorten(one.name, 26)}
            for one in points
            if (one.x <= middle) == right
        ]
        if rows:
            side = {"align": "left", "dx": 7} if right else {"align": "right", "dx": -7}
            yield {
                "data": data(rows),
                "mark": {"type": "text", **side},
                "encoding": {**axes, "text": {"field": "said"}},
            }


def _rule_fallen(ordered: Sequence[ScatterPoint]) -> Ruler | None:
    """Return a row for each of the points that fell most, with a mark at its first value."""
    shown = ordered[: 2 * NAMED]
    return make_ruler(
        [
            RulerRow(name, f"{one.x:.4g} to {one.y:.4g}", value=one.y, reference=one.x)
            for name, one in zip(shorten_all([one.name for one in shown]), shown, strict=True)
        ]
    )
