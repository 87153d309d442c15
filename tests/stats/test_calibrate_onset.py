"""Test a small run of the tables of a degrading run.

The page of the method has the printed tables.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stats import calibrate_onset

PAGE = (Path(__file__).resolve().parents[2] / "docs/method.md").read_text()


def test_the_page_of_the_method_has_rows_for_the_same_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_onset, "HEALTHY", dict.fromkeys(calibrate_onset.HEALTHY, 1))
    monkeypatch.setattr(calibrate_onset, "LOOKED_AT", dict.fromkeys(calibrate_onset.LOOKED_AT, 1))
    monkeypatch.setattr(calibrate_onset, "RUNS", 5)
    for row in calibrate_onset.tables().splitlines():
        first = "|".join(row.split("|")[: 3 if row.count("|") > 6 else 2])  # with the limit
        assert first in PAGE
