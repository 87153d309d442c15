"""Draw the verdicts of the last runs as a map: a row for each series, a column for each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from serve_eval.report.pictures.labels import count, list_some, shorten, shorten_all
from serve_eval.report.pictures.picture import Picture, Ruler, RulerRow
from serve_eval.report.pictures.vega import (
    BAD,
    FAINT,
    GOOD,
    OTHER,
    WARN,
    WIDTH,
    colours,
    data,
)

MOST_RUNS = 30
MOST_ROWS = 60
RECENT = 5
"""Runs before a pass among which a failure makes it a pass after a failure."""


class HeatState(StrEnum):
    """The state of a run in the map. A pass soon after a failure is a state of its own."""

    PASSED = "passed"
    RECOVERED = "passed after failed"
    FAILED = "failed"
    UNDECIDED = "undecided"
    UNJUDGED = "not judged"


_COLOURS: Final = {
    HeatState.PASSED: GOOD,
    HeatState.RECOVERED: OTHER,
    HeatState.FAILED: BAD,
    HeatState.UNDECIDED: WARN,
    HeatState.UNJUDGED: FAINT,
}
_SIGNS: Final = {
    HeatState.PASSED: "✓",
    HeatState.RECOVERED: "↻",
    HeatState.FAILED: "✗",
    HeatState.UNDECIDED: "?",
    HeatState.UNJUDGED: "·",
}
"""A sign for each state, so that the colour is not needed to tell them apart."""
_VERDICTS: Final = {
    "PASS": HeatState.PASSED,
    "FAIL": HeatState.FAILED,
    "ERROR": HeatState.FAILED,
    "INCONCLUSIVE": HeatState.UNDECIDED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """A series: its name, and the verdicts of its runs, oldest first."""

    name: str
    verdicts: Sequence[str]


def list_states(verdicts: Sequence[str]) -> list[HeatState]:
    """Return the state of each run, from the verdicts of all runs, oldest first."""
    plain = [_VERDICTS.get(one, HeatState.UNJUDGED) for one in verdicts]
    return [
        HeatState.RECOVERED
        if state is HeatState.PASSED and HeatState.FAILED in plain[max(0, i - RECENT) : i]
        else state
        for i, state in enumerate(plain)
    ]


def draw_heat(title: str, rows: Sequence[HeatRow]) -> Picture | None:
    """Return the map of the last MOST_RUNS runs of each series, or None without a run."""
    shown = [row for row in rows if row.verdicts][:MOST_ROWS]
    if not shown:
        return None
    title = shorten(title, 100)
    names = shorten_all([row.name for row in shown], 40)
    states = [list_states(row.verdicts)[-MOST_RUNS:] for row in shown]
    said = [f"{name}: {_describe(one)}" for name, one in zip(names, states, strict=True)]
    description = f"The last {count(MOST_RUNS, 'run')} of each series. {list_some(said)}."
    ruled = [
        RulerRow(
            label=name,
            text=_describe(one),
            value=100.0 * sum(map(_is_pass, one)) / len(one),
        )
        for name, one in zip(names, states, strict=True)
    ]
    return Picture(
        title=title,
        description=description,
        spec=_spec(names, states),
        ruler=Ruler(low=0.0, high=100.0, rows=ruled),
    )


def _is_pass(state: HeatState) -> bool:
    return state in (HeatState.PASSED, HeatState.RECOVERED)


def _describe(states: Sequence[HeatState]) -> str:
    counts = Counter(states)
    told = ", ".join(f"{counts[state]} {state}" for state in HeatState if counts[state])
    return f"{told}; the last {states[-1]}"


def _spec(names: Sequence[str], states: Sequence[Sequence[HeatState]]) -> dict[str, object]:
    cells = list(_cells(names, states))
    present = {str(cell["kind"]) for cell in cells}
    kinds = {str(state): colour for state, colour in _COLOURS.items() if state in present}
    widest = max(map(len, states))
    x = {
        "field": "run",
        "type": "ordinal",
        "title": "run, the latest on the right",
        "axis": {"labels": False, "ticks": False, "domain": False},
        "scale": {"domain": list(range(-widest, 0)), "paddingInner": 0.12},
    }
    y = {
        "field": "name",
        "type": "nominal",
        "sort": None,
        "title": None,
        "scale": {"paddingInner": 0.12},
    }
    return {
        "width": WIDTH,
        "height": {"step": 22},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "data": data(cells),
        "encoding": {"x": x, "y": y},
        "layer": [
            {"mark": {"type": "rect"}, "encoding": {"color": colours(kinds)}},
            {
                "mark": {"type": "text", "color": "var(--on-mark)", "fontWeight": "bold"},
                "encoding": {"text": {"field": "sign"}},
            },
        ],
    }


def _cells(
    names: Sequence[str], states: Sequence[Sequence[HeatState]]
) -> Iterator[dict[str, object]]:
    for name, one in zip(names, states, strict=True):
        for i, state in enumerate(one):
            yield {"name": name, "run": i - len(one), "kind": state, "sign": _SIGNS[state]}
