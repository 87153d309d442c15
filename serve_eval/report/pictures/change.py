"""Draw the change against a reference on the same prompts, with its interval and the margin."""

from __future__ import annotations

from serve_eval.report.pictures.labels import shorten
from serve_eval.report.pictures.picture import Picture, RulerRow, make_ruler
from serve_eval.report.pictures.vega import BAD, FAINT, FIRST, WIDTH, axis, data
from serve_eval.report.summary.figures import add_sign, figure
from serve_eval.schema import Metric, PairedComparison


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
        label="change",
        text=f"{shown} ({ends[0]} to {ends[1]}); ▲ no change, ┃ margin -{margin}",
        value=paired.difference,
        interval=(low, high),
        reference=0.0,
        threshold=-paired.margin,
    )
    return Picture(title=title, description=description, spec=spec, ruler=make_ruler([row]))


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
