"""Test the drift chart's false alarms.

The worst cell holds in a small run, and the page has rows for the same series.
"""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from tests.stats import calibrate_drift

PAGE = (Path(__file__).resolve().parents[2] / "docs/drift.md").read_text()


def test_the_worst_cell_keeps_its_promise_and_would_not_if_the_estimate_were_taken_for_the_variance() -> (  # noqa: E501
    None
):
    """Use 720 series of 100 prompts that are wrong with .03, and two reference runs."""
    random = numpy.random.default_rng(12)
    cell = calibrate_drift.measure(random, "all .03", 100, 2, own=False, endpoint_count=18)
    assert calibrate_drift.interval(cell.before, cell.series)[0] > 5 * calibrate_drift.NOMINAL
    assert calibrate_drift.interval(cell.after, cell.series)[0] <= calibrate_drift.NOMINAL
    assert min(cell.limits) > 10.0


def test_runs_are_drawn_from_the_law_of_their_prompts() -> None:
    random = numpy.random.default_rng(13)
    for name, difficulty in calibrate_drift.DIFFICULTIES.items():
        wrong = difficulty(random, 300)
        counts = calibrate_drift.drawn(random, wrong, (20_000,))
        variance = float((wrong * (1.0 - wrong)).sum())
        assert counts.mean() == pytest.approx(wrong.sum(), abs=4 * (variance / 20_000) ** 0.5), name
        assert counts.var() == pytest.approx(variance, rel=0.06), name


def test_the_page_of_the_method_has_rows_for_the_same_series(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ENDPOINTS", "SERIES", "EFFECT_SERIES", "FALL_SERIES"):
        monkeypatch.setattr(calibrate_drift, name, 1)
    rows = [line for line in calibrate_drift.tables().splitlines() if line.startswith("|")]
    assert len(rows) == 16 + 9 + 4 + 6
    for row in rows:
        assert "|".join(row.split("|")[:3]) in PAGE
