"""Draw the pictures of pages: a file for each, from typed values to a Picture."""

from serve_eval.report.pictures.distribution import (
    draw_boxes,
    draw_distribution,
    draw_lengths,
    draw_test,
)
from serve_eval.report.pictures.outcomes import draw_order
from serve_eval.report.pictures.picture import Picture, Ruler, RulerRow, make_ruler
from serve_eval.report.pictures.points import (
    IntervalRow,
    ScatterPoint,
    bound_mean,
    draw_against,
    draw_attribute,
    draw_change,
    draw_intervals,
)
from serve_eval.report.pictures.trend import TrendBand, TrendPoint, draw_load, draw_trend

__all__ = [
    "IntervalRow",
    "Picture",
    "Ruler",
    "RulerRow",
    "ScatterPoint",
    "TrendBand",
    "TrendPoint",
    "bound_mean",
    "draw_against",
    "draw_attribute",
    "draw_boxes",
    "draw_change",
    "draw_distribution",
    "draw_intervals",
    "draw_lengths",
    "draw_load",
    "draw_order",
    "draw_test",
    "draw_trend",
    "make_ruler",
]
