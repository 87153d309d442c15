"""Draw the outcomes of answers: in the order of requests, and by repeated question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from serve_eval.evaluation.results.degradation import what
from serve_eval.report.pictures.picture import (
    BAD,
    FAINT,
    GOOD,
    OTHER,
    WARN,
    WIDTH,
    Picture,
    Ruler,
    RulerRow,
    axis,
    colours,
    count,
    data,
    shorten,
)
from serve_eval.report.samples.details import RepeatedQuestion
from serve_eval.schema import Degradation, Outcome

RIGHT, PARTIAL, WRONG, UNREADABLE, FAILED = "right", "partly right", "wrong", "unreadable", "failed"
COLOURS: Final[Mapping[str, str]] = {
    RIGHT: GOOD,
    PARTIAL: OTHER,
    WRONG: BAD,
    UNREADABLE: WARN,
    FAILED: FAINT,
}
"""The groups in the order in which they are drawn."""
_GROUPS: Final[Mapping[str, str]] = {
    Outcome.CORRECT: RIGHT,
    Outcome.PARTIAL: PARTIAL,
    Outcome.WRONG: WRONG,
}


def group_outcome(outcome: str | None) -> str:
    """Return the group of an outcome; None is a request without an answer."""
    return FAILED if outcome is None else _GROUPS.get(outcome, UNREADABLE)


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
    alarms = " ".join(
        f"Alarm: from request {one.since:,} of {one.of:,} on, {what(one)} rose from"
        f" {one.before:.1%} to {one.after:.1%}; it was noticed at request {one.noticed:,}."
        for one in degradations
    )
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
            name,
            f"{totals[name]:,} of {n:,} ({totals[name] / n:.1%})",
            value=100.0 * totals[name] / n,
        )
        for name in present
    ]
    ruler = Ruler(low=0.0, high=100.0, rows=rows)
    return Picture(title, description, spec=spec, ruler=ruler)


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


MOST_COLUMNS = 120
"""Columns of the picture. Of more questions, neighbours share one."""


def draw_questions(task: str, questions: Sequence[RepeatedQuestion]) -> Iterator[Picture]:
    """Yield the picture of sorted questions, if any: a column with the shares of outcomes each."""
    if not questions:
        return
    groups = [_group(one) for one in questions]
    totals: Counter[str] = Counter()
    for one in groups:
        totals.update(one)
    present = {name: colour for name, colour in COLOURS.items() if totals[name]}
    kinds = _count_kinds(questions)
    said = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items() if n)
    repeats, n = questions[0].asked, len(questions)
    spec = {
        "width": WIDTH,
        "height": 180,
        "autosize": {"type": "fit", "contains": "padding"},
        "data": data(list(_list_columns(groups, list(present)))),
        "mark": {"type": "bar", "binSpacing": 1 if n <= MOST_COLUMNS else 0},
        "encoding": {
            "x": axis(
                "first",
                "question, the most often right first",
                scale={"domain": [0, n], "nice": False},
                bin="binned",
            ),
            "x2": {"field": "last"},
            "y": axis("low", "share of answers", axis={"format": "%"}, scale={"domain": [0, 1]}),
            "y2": {"field": "high"},
            "color": colours(present, offset=6),
        },
    }
    rows = [
        RulerRow(kind, f"{some:,} of {n:,}", value=100.0 * some / n) for kind, some in kinds.items()
    ]
    yield Picture(
        f"{shorten(task)}: {count(repeats, 'answer')} to each question",
        f"{count(n, 'question')}, each asked {repeats} times: {said}.",
        spec=spec,
        ruler=Ruler(low=0.0, high=100.0, rows=rows),
    )


def _group(one: RepeatedQuestion) -> Counter[str]:
    """Return how many answers to a question are in which group; those without a score failed."""
    found: Counter[str] = Counter()
    for outcome, n in one.outcomes.items():
        found[group_outcome(outcome)] += n
    found[FAILED] += one.asked - one.answered
    return found


def _count_kinds(questions: Sequence[RepeatedQuestion]) -> Mapping[str, int]:
    always = sum(one.right == one.asked for one in questions)
    never = sum(one.right == 0 for one in questions)
    return {
        f"always {RIGHT}": always,
        f"sometimes {RIGHT}": len(questions) - always - never,
        f"never {RIGHT}": never,
    }


def _list_columns(
    groups: Sequence[Mapping[str, int]], names: Sequence[str]
) -> Iterator[dict[str, object]]:
    """Yield a stack of shares for each question, or for some neighbours together."""
    n = len(groups)
    steps = min(MOST_COLUMNS, n)
    for i in range(steps):
        first, last = i * n // steps, (i + 1) * n // steps
        counts: Counter[str] = Counter()
        for one in groups[first:last]:
            counts.update(one)
        total, low = sum(counts.values()), 0
        for name in names:
            high = low + counts[name]
            if counts[name]:
                yield {
                    "first": first,
                    "last": last,
                    "low": round(low / total, 4),
                    "high": round(high / total, 4),
                    "kind": name,
                }
            low = high
