"""Test a small run of `make calibrate`, and that the page of the method shows its tables."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.stats import calibrate, calibrate_all

PAGE = (Path(__file__).resolve().parents[2] / "docs/method.md").read_text()


def test_a_small_calibration_prints_the_tables_of_the_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("REPLICATES", "FEWER", "CHUNK"):
        monkeypatch.setattr(calibrate, name, 40)
    jobs = calibrate.jobs_of("JSON", 100, 0.034)
    found = {job: calibrate.measure(job) for job in jobs.values()}
    assert found == {job: calibrate.measure(job) for job in jobs.values()}
    assert found[jobs["0"]]["classic"] == 0.0
    assert found[jobs["theta"]]["classic"] > 0.5
    assert found[jobs["theta"]]["permutation"] > 0.9
    lines = calibrate.tables([jobs], found).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 * 2 + 3 + 1
    page = PAGE.splitlines()
    for row in rows:
        if row.startswith("| JSON 100 | 0.034 |"):
            assert _exact(row) in [
                _exact(line) for line in page if line.startswith("| JSON 100 | 0.034 |")
            ]
        else:
            assert row in page


@pytest.mark.parametrize("name", calibrate_all.MODULES)
def test_the_tables_of_every_part_have_their_place_in_the_docs(name: str) -> None:
    pages = [path.read_text() for path in calibrate_all.DOCS.glob("*.md")]
    found = [
        text[slice(*span)]
        for text in pages
        if (span := calibrate_all.place(text, name)) is not None
    ]
    assert len(found) == 1
    assert found[0].count("\n| ") > 3
    assert hasattr(import_module(calibrate_all.module_name(name)), "main")


def _exact(row: str) -> list[str]:
    """Return the values in brackets, which do not depend on chance."""
    return re.findall(r"\((.*?)\)", row)
