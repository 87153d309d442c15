"""Draw the classic test: both distributions, the threshold, both errors, and the value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

from serve_eval.report.pictures.picture import (
    BAD,
    FAINT,
    INK,
    WARN,
    WIDTH,
    Picture,
    axis,
    colours,
    data,
    shorten,
)
from serve_eval.report.summary.figures import figure
from serve_eval.schema import TaskResult, Verdict

POINTS = 160
"""Points of a curve."""
REACH = 3.5
"""Standard errors around both means that are shown."""


@dataclass(frozen=True, slots=True)
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
    spec = _spec(test, value, reference, threshold, theta)
    return Picture(
        title=title,
        description=description,
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


def _spec(
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
