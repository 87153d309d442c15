"""Test a small run of the tables of endpoints compared with themselves.

The page has the printed tables.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stats import calibrate_batches, calibrate_flips

PAGE = (Path(__file__).resolve().parents[2] / "docs/regression-checks.md").read_text()


def test_the_page_has_rows_for_the_same_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_flips, "ROUNDS", 2)
    monkeypatch.setattr(calibrate_batches, "ROUNDS", 2)
    for row in (*calibrate_flips.tables().splitlines(), *calibrate_batches.tables().splitlines()):
        assert "|".join(row.split("|")[:-3]) in PAGE
