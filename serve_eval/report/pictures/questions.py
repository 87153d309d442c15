"""Draw the outcomes of repeated questions, sorted by the share of right answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from serve_eval.report.pictures.labels import count, shorten
from serve_eval.report.pictures.outcomes import COLOURS, FAILED, RIGHT, group_outcome
from serve_eval.report.pictures.picture import Picture, Ruler, RulerRow
from serve_eval.report.pictures.vega import WIDTH, axis, colours, data
from serve_eval.report.samples.by_question import RepeatedQuestion

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
        "data": data(list(_columns(groups, list(present)))),
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
        RulerRow(label=kind, text=f"{some:,} of {n:,}", value=100.0 * some / n)
        for kind, some in kinds.items()
    ]
    yield Picture(
        title=f"{shorten(task)}: {count(repeats, 'answer')} to each question",
        description=f"{count(n, 'question')}, each asked {repeats} times: {said}.",
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


def _columns(
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
