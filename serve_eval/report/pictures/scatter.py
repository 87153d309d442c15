"""Draw pairs of values as points: A against B, or an attribute against a value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from serve_eval.report.pictures.picture import (
    FAINT,
    FIRST,
    WIDTH,
    Picture,
    Ruler,
    RulerRow,
    axis,
    count,
    data,
    list_some,
    make_ruler,
    shorten,
    shorten_all,
)

NAMED = 6
"""Points with a label: those that are farthest from the diagonal."""
MOST_POINTS = 400
"""Points of a picture. Of more, evenly chosen ones are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    spec = _spec(
        [
            _line([(low, low), (high, high)], _axes(sides, scale, scale)),
            _points(drawn, _axes(sides, scale, scale), alone=named),
            *_labels(labelled, _axes(sides, scale, scale)),
        ],
        square=True,
    )
    return Picture(title=title, description=description, spec=spec, ruler=_rule_fallen(ordered))


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
    spec = _spec([_points(_thin(points), axes), *named], square=False)
    labels = shorten_all([one.name for one in points])
    rows = [
        RulerRow(label=name, text=f"{one.y:.4g}", value=one.y)
        for name, one in zip(labels, points, strict=True)
    ]
    return Picture(title=title, description=description, spec=spec, ruler=make_ruler(rows))


def _thin(points: Sequence[ScatterPoint]) -> Sequence[ScatterPoint]:
    step = -(-len(points) // MOST_POINTS)
    return points[::step]


def _spec(layers: Sequence[dict[str, object]], *, square: bool) -> dict[str, object]:
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
            RulerRow(label=name, text=f"{one.x:.4g} to {one.y:.4g}", value=one.y, reference=one.x)
            for name, one in zip(shorten_all([one.name for one in shown]), shown, strict=True)
        ]
    )
