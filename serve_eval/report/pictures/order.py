"""Draw the outcomes of a run over the order in which its requests started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from serve_eval.evaluation.results.degradation import what
from serve_eval.report.pictures.labels import count, shorten
from serve_eval.report.pictures.outcomes import COLOURS, group_outcome
from serve_eval.report.pictures.picture import Picture, Ruler, RulerRow
from serve_eval.report.pictures.vega import WIDTH, axis, colours, data
from serve_eval.schema import Degradation

MOST_STEPS = 50
"""Columns of the picture. Each is the share of the outcomes among as many requests."""


def draw_order(
    task: str,
    outcomes: Sequence[str | None],
    degradations: Sequence[Degradation] = (),
    requests: int | None = None,
) -> Picture | None:
    """Return the picture of outcomes in the order of starts (None: the request failed).

    An alarm is a line at the first worse request. The outcomes are those of all `requests`, or of
    some of them by chance. None without an outcome.
    """
    if not outcomes:
        return None
    groups = [group_outcome(outcome) for outcome in outcomes]
    totals, n = Counter(groups), len(groups)
    requests = requests or n
    present = {name: colour for name, colour in COLOURS.items() if totals[name]}
    title = f"{shorten(task)}: outcomes in the order of starts"
    said = ", ".join(f"{totals[name]:,} {name}" for name in present)
    alarms = " ".join(_describe(one) for one in degradations)
    if not degradations:
        alarms = "No alarm about the course of the run."
    drawn = f"{n:,} of " if n < requests else ""
    description = f"{drawn}{count(requests, 'request')}: {said}. {alarms}"
    spec = {
        "width": WIDTH,
        "height": 180,
        "autosize": {"type": "fit", "contains": "padding"},
        "layer": [
            {
                "data": data(list(_columns(groups, list(present), requests))),
                "mark": {"type": "bar", "binSpacing": 0.5},
                "encoding": {
                    "x": _requests("first", requests, bin="binned"),
                    "x2": {"field": "last"},
                    "y": axis("low", "share", axis={"format": "%"}, scale={"domain": [0, 1]}),
                    "y2": {"field": "high"},
                    # The text of an alarm stands between the legend and the picture.
                    "color": colours(present, offset=24 if degradations else 6),
                },
            },
            *(_alarm(one, requests) for one in degradations),
        ],
    }
    rows = [
        RulerRow(
            label=name,
            text=f"{totals[name]:,} of {n:,} ({totals[name] / n:.1%})",
            value=100.0 * totals[name] / n,
        )
        for name in present
    ]
    ruler = Ruler(low=0.0, high=100.0, rows=rows)
    return Picture(title=title, description=description, spec=spec, ruler=ruler)


def _columns(
    groups: Sequence[str], names: Sequence[str], requests: int
) -> Iterator[dict[str, object]]:
    """Yield a stack of shares for each part of the requests, of which `groups` has some or all."""
    n = len(groups)
    steps = min(MOST_STEPS, n)
    for i in range(steps):
        first, last = i * n // steps, (i + 1) * n // steps
        counts, low = Counter(groups[first:last]), 0
        for name in names:
            high = low + counts[name]
            if counts[name]:
                yield {
                    "first": first * requests // n,
                    "last": last * requests // n,
                    "low": round(low / (last - first), 4),
                    "high": round(high / (last - first), 4),
                    "kind": name,
                }
            low = high


def _requests(field: str, n: int, **more: object) -> dict[str, object]:
    scale = {"domain": [0, n], "nice": False}
    return axis(field, "request, in the order of starts", scale=scale, **more)


def _describe(one: Degradation) -> str:
    return (
        f"Alarm: from request {one.since:,} of {one.of:,} on, {what(one)} rose from"
        f" {one.before:.1%} to {one.after:.1%}; it was noticed at request {one.noticed:,}."
    )


def _alarm(one: Degradation, n: int) -> dict[str, object]:
    late = one.since > 0.6 * n
    text = {"type": "text", "align": "right" if late else "left", "dx": -5 if late else 5}
    row = {"at": one.since, "said": f"worse from request {one.since:,} on"}
    return {
        "data": data([row]),
        "encoding": {"x": _requests("at", n)},
        "layer": [
            {"mark": {"type": "rule", "strokeWidth": 3}},
            {
                "mark": {**text, "fontWeight": "bold"},
                "encoding": {"text": {"field": "said"}, "y": {"value": -8}},
            },
        ],
    }
