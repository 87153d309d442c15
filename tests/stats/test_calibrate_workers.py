"""Test a small run of the tables of healthy and bad workers.

The page has the printed tables.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stats import calibrate_workers

PAGE = (Path(__file__).resolve().parents[2] / "docs/workers.md").read_text()


def test_the_page_has_rows_for_the_same_deployments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_workers, "ROUNDS", 2)
    monkeypatch.setattr(calibrate_workers, "ANSWERS", 40)
    for row in calibrate_workers.tables().splitlines():
        assert "|".join(row.split("|")[:2]) in PAGE
