"""Draw distributions: those of measured values, and the two of the classic test."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist

from serve_eval.frozen import freeze
from serve_eval.report.pictures.outcomes import COLOURS, group_outcome
from serve_eval.report.pictures.picture import (
    BAD,
    FAINT,
    FIRST,
    INK,
    SECOND,
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
    shorten,
    shorten_all,
)
from serve_eval.report.summary.figures import figure
from serve_eval.schema import TaskResult, Verdict

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
        title,
        description,
        spec=_spec(known, unit, levels),
        ruler=make_ruler(
            [
                RulerRow(
                    f"{name} {key}" if len(known) > 1 else key,
                    _say(quantile(values, q), unit),
                    value=quantile(values, q),
                )
                for name, values in known.items()
                for key, q in QUANTILES.items()
            ]
        ),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values: the smallest that at least this share does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def _say(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if value < 1000.0 else f"{value:,.0f} {unit}"


def _describe(name: str, values: Sequence[float], unit: str) -> str:
    told = ", ".join(f"{key} {_say(quantile(values, q), unit)}" for key, q in QUANTILES.items())
    return f"{name}: {count(len(values), 'value')}, {told}, largest {_say(values[-1], unit)}"


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


MOST_GROUPS = 60
_ENDS = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}


def draw_boxes(
    title: str,
    groups: Mapping[str, Sequence[float]],
    unit: str,
    colours: Mapping[str, str] | None = None,
) -> Picture | None:
    """Return the picture of the groups that have values, in their order; None without one."""
    known = {name: sorted(values) for name, values in groups.items() if len(values)}
    if not known:
        return None
    shown = list(known.items())[:MOST_GROUPS]
    names = shorten_all([name for name, _ in shown])
    title = shorten(title, 100)
    rows, said, ruled = [], [], []
    for name, (whole, values) in zip(names, shown, strict=True):
        ends = {key: quantile(values, q) for key, q in _ENDS.items()}
        label = f"{name} ({len(values):,})"
        rows.append({"name": label, "colour": (colours or {}).get(whole, FIRST), **ends})
        ruled.append(
            RulerRow(
                label,
                f"median {ends['p50']:,.4g} {unit}, middle half {ends['p25']:,.4g} to"
                f" {ends['p75']:,.4g}",
                value=ends["p50"],
                interval=(ends["p25"], ends["p75"]),
            )
        )
        said.append(
            f"{name}: {count(len(values), 'value')}, median {ends['p50']:,.4g},"
            f" middle half {ends['p25']:,.4g} to {ends['p75']:,.4g}"
        )
    more = f" {len(shown)} of {len(known):,} groups are drawn." if len(known) > len(shown) else ""
    description = f"{title} in {unit}: {list_some(said)}.{more}"
    ruler = make_ruler(ruled)
    return Picture(title, description, spec=_draw_boxes(rows, unit), ruler=ruler)


def draw_lengths(task: str, lengths: Sequence[tuple[str, int]], unit: str) -> Picture | None:
    """Return the picture of answer lengths by outcome, from pairs of an outcome and a length."""
    groups: dict[str, list[float]] = {name: [] for name in COLOURS}
    for outcome, length in lengths:
        groups[group_outcome(outcome)].append(float(length))
    return draw_boxes(f"{shorten(task)}: length of answers by outcome", groups, unit, COLOURS)


def _draw_boxes(rows: Sequence[Mapping[str, object]], unit: str) -> dict[str, object]:
    y = {"field": "name", "type": "nominal", "sort": None, "title": None}
    # The colour is a column of the data, so that no scale maps it.
    colour = {"field": "colour", "type": "nominal", "scale": None}
    return {
        "width": WIDTH,
        "height": {"step": 24},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": data(rows),
        "encoding": {"y": y},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": {"x": axis("p5", unit), "x2": {"field": "p95"}, "color": colour},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 7, "opacity": 0.75},
                "encoding": {"x": axis("p25", unit), "x2": {"field": "p75"}, "color": colour},
            },
            {
                "mark": {"type": "point", "size": 70, "color": INK},
                "encoding": {"x": axis("p50", unit)},
            },
        ],
    }


POINTS = 160
"""Points of a curve."""
REACH = 3.5
"""Standard errors around both means that are shown."""


@freeze
class KnownTest:
    """The figures of a test, all of them known."""

    value: float
    reference: float
    threshold: float
    theta: float
    alpha: float
    beta: float
    scale: float
    better: float

    @property
    def worse(self) -> float:
        """The mean of an endpoint that is worse by theta."""
        return self.reference - self.better * self.theta


def draw_test(result: TaskResult, verdict: Verdict) -> Picture | None:
    """Return the picture of the test, or None if a figure of it is not known.

    It has no ruler: that of the task shows value, threshold and reference.
    """
    test = find_test(result, verdict)
    if test is None:
        return None
    metric = result.metric
    value, reference, threshold, theta = (
        figure(x, metric) for x in (test.value, test.reference, test.threshold, test.theta)
    )
    side = "below" if metric.higher_is_better else "above"
    title = f"{shorten(result.task)}: the test"
    alone = "" if verdict.rule == "classic" else f" The verdict is that of the rule {verdict.rule}."
    description = (
        f"The value is {value}, the reference {reference}; a value {side} {threshold} fails. An"
        f" endpoint equal to the reference fails with probability {test.alpha:g} (alpha), one"
        f" that is worse by {theta} points passes with probability {test.beta:g} (beta).{alone}"
    )
    spec = _draw_classic(test, value, reference, threshold, theta)
    return Picture(
        title,
        description,
        spec=spec,
    )


def find_test(result: TaskResult, verdict: Verdict) -> KnownTest | None:
    """Return the figures of the test, or None if one is not known."""
    v = verdict
    if v.evaluated is None or v.reference is None or v.threshold is None or v.theta is None:
        return None
    if v.alpha is None or v.beta is None or not v.sigma or not v.num_samples:
        return None
    return KnownTest(
        value=v.evaluated,
        reference=v.reference,
        threshold=v.threshold,
        theta=v.theta,
        alpha=v.alpha,
        beta=v.beta,
        scale=math.sqrt(2.0 * v.sigma**2 / v.num_samples),
        better=1.0 if result.metric.higher_is_better else -1.0,
    )


def _draw_classic(
    test: KnownTest, value: str, reference: str, threshold: str, theta: str
) -> dict[str, object]:
    kinds = {
        "as the reference": FAINT,
        f"worse by {theta}": INK,
        f"alpha {test.alpha:g}: fails although equal": BAD,
        f"beta {test.beta:g}: passes although worse": WARN,
    }
    same, lower, alpha, beta = kinds
    curves = [*trace_curve(test, test.reference, same), *trace_curve(test, test.worse, lower)]
    areas = [
        *trace_curve(test, test.reference, alpha, failing=True),
        *trace_curve(test, test.worse, beta, failing=False),
    ]
    marks = [
        {"x": test.threshold, "row": 0, "said": f"threshold {threshold}"},
        {"x": test.reference, "row": 1, "said": f"reference {reference}"},
        {"x": test.value, "row": 2, "said": f"value {value}"},
    ]
    lowest = min(test.threshold, test.reference, test.value)
    x = axis("x", "value", scale={"nice": False})
    # The texts stand above the curves.
    most = 1.6 * NormalDist().pdf(0.0)
    y = {"field": "y", "type": "quantitative", "axis": None, "scale": {"domain": [0, most]}}
    # The legend of both curves and areas has two columns, so that it fits a narrow picture.
    colour = colours(kinds, columns=2)
    return {
        "width": WIDTH,
        "height": 230,
        "autosize": {"type": "fit", "contains": "padding"},
        "encoding": {"x": x},
        "layer": [
            {
                "data": data(areas),
                "mark": {"type": "area", "opacity": 0.55},
                "encoding": {"y": y, "color": colour},
            },
            {
                "data": data(curves),
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"y": y, "color": colour},
            },
            *(_mark(one, dashed=one["row"] != 2, left=one["x"] == lowest) for one in marks),
        ],
    }


def _mark(row: dict[str, object], *, dashed: bool, left: bool) -> dict[str, object]:
    """Return a line across the picture with its text, on its left side or its right one."""
    rule = {"type": "rule", "strokeWidth": 2, **({"strokeDash": [4, 3]} if dashed else {})}
    height = {"value": 10 + 16 * int(str(row["row"]))}
    side = {"align": "right", "dx": -5} if left else {"align": "left", "dx": 5}
    text = {"type": "text", **side, "fontWeight": "normal" if dashed else "bold"}
    return {
        "data": data([row]),
        "layer": [
            {"mark": rule},
            {"mark": text, "encoding": {"text": {"field": "said"}, "y": height}},
        ],
    }


def trace_curve(
    test: KnownTest, mean: float, kind: str, *, failing: bool | None = None
) -> Iterator[dict[str, object]]:
    """Yield the points of a density: all, or those on one side of the threshold."""
    low = min(test.worse, test.reference, test.value) - REACH * test.scale
    high = max(test.worse, test.reference, test.value) + REACH * test.scale
    density = NormalDist(mean, test.scale)
    grid = [low + (high - low) * i / (POINTS - 1) for i in range(POINTS)]
    for x in sorted([*grid, test.threshold]):
        fails = test.better * (x - test.threshold)
        if failing is None or fails == 0.0 or (fails < 0.0) == failing:
            yield {"x": round(x, 4), "y": round(density.pdf(x) * test.scale, 5), "kind": kind}
