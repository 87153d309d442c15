"""Draw how measured values are distributed, such as latencies, of one run or of two."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from serve_eval.report.pictures.labels import count, shorten
from serve_eval.report.pictures.picture import Picture, Ruler, RulerRow, make_ruler
from serve_eval.report.pictures.vega import FIRST, SECOND, WIDTH, axis, colours, data

COLUMNS = 40
WIDE = 100.0
"""Ratio of the largest value to the smallest from which the axis is logarithmic."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def draw_distribution(
    title: str,
    series: Mapping[str, Sequence[float]],
    unit: str,
    levels: Mapping[str, float] | None = None,
) -> Picture | None:
    """Return the picture of one or two series of finite values, or None without a value.

    `levels` are named lines, such as a limit.
    """
    known = {shorten(name): sorted(values) for name, values in series.items() if len(values)}
    if not known:
        return None
    title, levels = shorten(title, 100), levels or {}
    parts = [_describe(name, values, unit) for name, values in known.items()]
    parts += [f"{shorten(name)} at {_say(at, unit)}" for name, at in levels.items()]
    description = f"{title}: {'; '.join(parts)}."
    return Picture(
        title=title,
        description=description,
        spec=_spec(known, unit, levels),
        ruler=_rule(known, unit),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values: the smallest that at least this share does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def _say(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if value < 1000.0 else f"{value:,.0f} {unit}"


def _describe(name: str, values: Sequence[float], unit: str) -> str:
    told = ", ".join(f"{key} {_say(quantile(values, q), unit)}" for key, q in QUANTILES.items())
    return f"{name}: {count(len(values), 'value')}, {told}, largest {_say(values[-1], unit)}"


def _rule(known: Mapping[str, Sequence[float]], unit: str) -> Ruler | None:
    return make_ruler(
        [
            RulerRow(
                label=f"{name} {key}" if len(known) > 1 else key,
                text=_say(quantile(values, q), unit),
                value=quantile(values, q),
            )
            for name, values in known.items()
            for key, q in QUANTILES.items()
        ]
    )


def _spec(
    known: Mapping[str, Sequence[float]], unit: str, levels: Mapping[str, float]
) -> dict[str, object]:
    least = min((x for values in known.values() for x in values if x > 0.0), default=0.0)
    every = [x for values in known.values() for x in (values[0], values[-1])] + [*levels.values()]
    low, high = min(every), max(every)
    log = low > 0.0 and least > 0.0 and high / least > WIDE
    edges = _edges(low, high, log=log)
    kinds = dict(zip(known, (FIRST, SECOND), strict=False))
    rows = [row for name, values in known.items() for row in _columns(name, values, edges)]
    scale: dict[str, object] = {"type": "log" if log else "linear", "nice": False}
    x = axis("first", unit, scale=scale)
    return {
        "width": WIDTH,
        "height": 160,
        "autosize": {"type": "fit", "contains": "padding"},
        "layer": [
            {
                "data": data(rows),
                "mark": {"type": "rect", "opacity": 0.6 if len(known) > 1 else 0.9},
                "encoding": {
                    "x": x,
                    "x2": {"field": "last"},
                    "y": axis("share", "share", axis={"format": "%"}, scale={"zero": True}),
                    "y2": {"datum": 0},
                    "color": colours(kinds, shown=len(known) > 1),
                },
            },
            *(
                _level(shorten(name), at, unit, scale, 8 + 14 * i)
                for i, (name, at) in enumerate(levels.items())
            ),
        ],
    }


def _edges(low: float, high: float, *, log: bool) -> list[float]:
    if high <= low:
        low, high = low - abs(low) * 0.05 - 1e-9, high + abs(high) * 0.05 + 1e-9
    if log:
        ratio = math.log(high / low) / COLUMNS
        return [low * math.exp(ratio * i) for i in range(COLUMNS + 1)]
    return [low + (high - low) * i / COLUMNS for i in range(COLUMNS + 1)]


def _columns(
    name: str, values: Sequence[float], edges: Sequence[float]
) -> Iterator[dict[str, object]]:
    """Yield a column for each range with values; the last one includes its end."""
    last_column = len(edges) - 2
    counts = Counter(min(max(0, bisect_right(edges, x) - 1), last_column) for x in values)
    for number, first, last in ((counts[i], *edges[i : i + 2]) for i in sorted(counts)):
        yield {"first": first, "last": last, "share": number / len(values), "kind": name}


def _level(
    name: str, at: float, unit: str, scale: dict[str, object], below: int
) -> dict[str, object]:
    return {
        "data": data([{"at": at, "said": name}]),
        "encoding": {"x": axis("at", unit, scale=scale)},
        "layer": [
            {"mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 2}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4},
                "encoding": {"text": {"field": "said"}, "y": {"value": below}},
            },
        ],
    }
