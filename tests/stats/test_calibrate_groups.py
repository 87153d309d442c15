"""Test that every rule holds its level for questions on passages, and would not without groups."""

from __future__ import annotations

import pytest

from tests.stats import calibrate_groups
from tests.stats.calibrate_groups import Job, count, count_slices

COMPARISONS = 150
MOST, LEAST = {"proven": 17, "margin": 17, "load": 6, "interval": 17}, 20
"""Errors of 150 that are allowed by chance with probability .999, and that are seen without groups.

The expected numbers at the levels are 7.5, 7.5, 1.5 and 7.5.
"""


@pytest.fixture(autouse=True)
def _few(monkeypatch) -> None:
    monkeypatch.setattr(calibrate_groups, "REPLICATES", COMPARISONS)
    monkeypatch.setattr(calibrate_groups, "SLICE_REPLICATES", 20)


def test_each_level_holds_with_groups_and_breaks_without():
    found = count(Job(400, 10, builds=0.2), 0)
    for kind, most in MOST.items():
        assert found[f"{kind} named"] <= most, kind
        assert found[f"{kind} ignored"] >= LEAST, kind


def test_no_subject_is_named_for_passages_that_another_build_misreads():
    found = count_slices(Job(200, 20, builds=0.4), 0)
    assert found["named"] == 0
    assert found["ignored"] >= 10
