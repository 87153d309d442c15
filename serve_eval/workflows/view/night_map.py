"""Make the map of verdicts: a row for each series, and a column for each of the last nights."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

from serve_eval.report.document import rank_outcome
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.pictures.labels import count
from serve_eval.workflows.view.listing import Links
from serve_eval.workflows.view.overview import FAIL, PASS, UNJUDGED, Ending, SeriesEnd, state_of

NIGHTS, LETTERED = 30, 7
"""Nights of the map, and of the letters that a terminal shows."""
_MARKS: Final = {PASS: ("✓", "P"), FAIL: ("✗", "F"), "ERROR": ("!", "E"), "KILLED": ("!", "E")}
_UNJUDGED: Final = ("·", ".")
_UNDECIDED: Final = ("?", "?")
LEGEND = (
    "P passed, F failed, E error or killed, ? undecided, . not judged, - nothing; the newest on"
    " the right."
)
"""The letters of a terminal, in words."""


def list_nights(ends: Sequence[SeriesEnd], most: int = NIGHTS) -> list[date]:
    """Return the last dates (UTC) on which something ended, oldest first."""
    return sorted({ending.night for one in ends for ending in one.endings})[-most:]


def write_letters(one: SeriesEnd, nights: Sequence[date]) -> str:
    """Return a letter for each night, and "-" for one without a run."""
    worst = _find_worst(one)
    return "".join(_mark(worst[night])[1] if night in worst else "-" for night in nights)


def draw_map(ends: Sequence[SeriesEnd], links: Links) -> DataTable:
    """Return the map: each cell has the worst verdict of a night and leads to its page."""
    nights = list_nights(ends)
    columns = [DataColumn(name="series")]
    for i, night in enumerate(nights):
        begins = i == 0 or night.month != nights[i - 1].month
        columns.append(
            DataColumn(name=f"{night:%m-%d}" if begins else f"{night:%d}", note=str(night))
        )
    return DataTable(
        title=f"Verdicts of the last {count(len(nights), 'night')}",
        columns=columns,
        rows=[_draw_row(one, nights, links) for one in ends],
        caption=(
            "✓ passed, ✗ failed, ! error or killed, ? undecided, · not judged: the worst of each"
            " night (UTC), the newest on the right. A mark leads to the page of its result. A"
            " narrow screen scrolls the map sideways."
        ),
        marks=True,
    )


def _draw_row(one: SeriesEnd, nights: Sequence[date], links: Links) -> list[DataCell]:
    worst = _find_worst(one)
    cells = [DataCell(text=one.name)]
    for night in nights:
        if (ending := worst.get(night)) is None:
            cells.append(DataCell(text="", order=float(len(nights) + 100)))
            continue
        several = sum(each.night == night for each in one.endings)
        more = f"; the worst of {several} that night" if several > 1 else ""
        figures = f" {ending.compared}" if ending.compared else ""
        cells.append(
            DataCell(
                text=_mark(ending)[0],
                order=float(rank_outcome(ending.outcome)),
                href=links.to_page(ending.folder),
                state=state_of(ending.outcome),
                note=f"{ending.when} {ending.outcome}{figures}{more}",
            )
        )
    return cells


def _find_worst(one: SeriesEnd) -> dict[date, Ending]:
    """Return the worst ending of each night, of equal ones the latest."""
    worst: dict[date, Ending] = {}
    for ending in one.endings:
        known = worst.get(ending.night)
        if known is None or rank_outcome(ending.outcome) <= rank_outcome(known.outcome):
            worst[ending.night] = ending
    return worst


def _mark(ending: Ending) -> tuple[str, str]:
    return _MARKS.get(ending.outcome, _UNJUDGED if ending.outcome in UNJUDGED else _UNDECIDED)
