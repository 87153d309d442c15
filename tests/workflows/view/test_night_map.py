"""The map of verdicts: the worst of each night, the newest on the right, with what is behind it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from serve_eval.report.page.content import DataCell
from serve_eval.workflows.view.listing import NIGHTS, Links, draw_map, list_nights, write_letters
from serve_eval.workflows.view.overview import Ending, SeriesEnd

T0 = datetime(2026, 1, 31, 23, tzinfo=UTC)


def _series(name: str, *endings: tuple[float, str], folder: Path = Path("f")) -> SeriesEnd:
    """Return a series with an outcome so many hours after T0."""
    return SeriesEnd(
        name=name,
        endings=[
            Ending(
                outcome=outcome,
                began=T0 + timedelta(hours=hours),
                folder=folder / f"{hours}",
                value="80.0",
                interval="77.5 to 82.4",
                against="90.0",
                drop="10.0 below",
            )
            for hours, outcome in endings
        ],
        last_night=T0,
    )


def _cells(ends: Sequence[SeriesEnd], folder: Path = Path("f")) -> list[Sequence[DataCell]]:
    return [row[1:] for row in draw_map(ends, Links(folder=folder, served=False)).rows]


def test_a_cell_is_the_worst_of_its_night_and_says_its_value_and_interval(tmp_path: Path) -> None:
    one = _series("s", (0, "PASS"), (2, "PASS"), (3, "FAIL"), (4, "PASS"), folder=tmp_path)
    (tmp_path / "3").mkdir()
    (tmp_path / "3/report.html").touch()
    [[first, second]] = _cells([one], tmp_path)
    assert (first.text, first.state, first.href) == ("✓", "pass", "")
    assert (second.text, second.state, second.href) == ("✗", "fail", "3/report.html")
    assert second.note == (
        "2026-02-01 02:00 FAIL 80.0 (77.5 to 82.4), 10.0 below reference 90.0; the worst of 3 that"
        " night"
    )


@pytest.mark.parametrize(
    ("outcome", "mark", "letter", "state"),
    [
        ("PASS", "✓", "P", "pass"),
        ("FAIL", "✗", "F", "fail"),
        ("ERROR", "!", "E", "fail"),
        ("KILLED", "!", "E", "fail"),
        ("INCONCLUSIVE", "?", "?", "warn"),
        ("INTERRUPTED", "?", "?", "warn"),
        ("UNSUPPORTED", "?", "?", "warn"),
        ("NO REFERENCE", "·", ".", "none"),
        ("INTEGRATION TEST", "·", ".", "none"),
        ("SHARD", "·", ".", "none"),
    ],
)
def test_each_outcome_has_a_mark_and_no_reference_is_quiet(
    outcome: str, mark: str, letter: str, state: str
) -> None:
    one = _series("s", (0, outcome))
    [[cell]] = _cells([one])
    assert (cell.text, cell.state) == (mark, state)
    assert write_letters(one, list_nights([one])) == letter


def test_nights_are_dates_with_a_result_and_only_the_last_ones_are_shown() -> None:
    old = _series("old", *((24 * day, "PASS") for day in range(40)))
    new = _series("new", (24 * 45, "FAIL"))
    assert len(list_nights([old, new])) == NIGHTS
    table = draw_map([old, new], Links(folder=Path("f"), served=False))
    assert table.title == "Verdicts of the last 30 nights"
    assert [len(row) for row in table.rows] == [NIGHTS + 1] * 2
    assert [cell.text for cell in table.rows[0][-2:]] == ["✓", ""]
    assert [cell.text for cell in table.rows[1][-2:]] == ["", "✗"]
    # A month is named where it begins; each heading has its whole date.
    named = {column.name: column.note for column in table.columns if "-" in column.name}
    assert named == {"02-11": "2026-02-11", "03-01": "2026-03-01"}
    assert table.columns[-1].note == "2026-03-17"
    assert write_letters(new, list_nights([old, new], 3)) == "--F"
