"""Test that dates are found in the formats that chat templates use."""

from __future__ import annotations

from datetime import date

import pytest

from serve_eval.evidence.prompt_audit.compare import find_today, list_dates, mask_dates

TODAY = date(2026, 9, 4)


@pytest.mark.parametrize(
    "written",
    [
        "2026-09-04",
        "2026/9/4",
        "04 Sep 2026",
        "4 September 2026",
        "September 4, 2026",
        "Sept 04, 2026",
        "Sep. 4, 2026",
        "09/04/2026",
        "04.09.2026",
        "2026-09-05",
        "03 Sep 2026",
    ],
)
def test_today_is_found_as_written(written: str) -> None:
    text = f"Knowledge: December 2023\nToday: {written}\n\nHi 12-34."
    assert find_today(text, TODAY) == written
    assert mask_dates(text).count("<date>") == 1


@pytest.mark.parametrize("written", ["26 Jul 2024", "2026-09-07", "Monday", "2026", "12026-09-041"])
def test_other_days_and_numbers_are_not_today(written: str) -> None:
    assert find_today(f"Today: {written}", TODAY) is None


def test_dates_and_weekdays_are_masked() -> None:
    assert list_dates("1/2/2026 and May 3, 2025") == ["1/2/2026", "May 3, 2025"]
    assert mask_dates("Friday, 4 September 2026") == "<weekday>, <date>"
