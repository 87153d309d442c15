"""Test that every rule holds its level for questions on passages, and would not without groups."""

from __future__ import annotations

import numpy
import pytest

from serve_eval.schema import VerificationOutcome as Outcome
from tests.measured import MEASURED
from tests.stats import calibrate_groups
from tests.stats import calibrate_siblings as simulated
from tests.stats.calibrate_groups import Job, count, count_slices

COMPARISONS = 150
MOST, LEAST = {"proven": 17, "margin": 17, "load": 6, "interval": 17}, 20
"""Errors of 150 that are allowed by chance with probability .999, and that are seen without groups.

The expected numbers at the levels are 7.5, 7.5, 1.5 and 7.5.
"""


@pytest.fixture(autouse=True)
def _few(monkeypatch):
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


TRIALS = 25


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(simulated, "TRIALS", TRIALS)


@pytest.fixture
def page():
    return (MEASURED / "verify.md").read_text()


@pytest.mark.parametrize("cell", simulated.HEALTHY, ids=lambda cell: cell.name)
def test_healthy_servers_are_rarely_accused(cell, page):
    outcomes, _ = simulated.measure(cell)
    assert sum(outcomes[one] for one in simulated.RED) <= 2
    assert f"| {cell.name} |" in page


def test_faults_are_found(page):
    found = {cell.name: cell for cell in simulated.list_faults()}
    for name in ("four-bit weights", "W8A8", "2 % from another state"):
        outcomes, _ = simulated.measure(found[name])
        assert sum(outcomes[one] for one in simulated.RED) >= 0.8 * TRIALS, name
    assert all(f"| {name} |" in page for name in found)


@pytest.mark.parametrize(("hits", "interval"), [(0, (0.0, 0.138)), (25, (0.862, 1.0))])
def test_the_interval_is_exact(hits, interval):
    """Clopper and Pearson's bound without a hit is 1 - (alpha / 2) ** (1 / n): .137 of 25."""
    assert simulated.interval(hits, 25) == pytest.approx(interval, abs=2e-3)


def test_an_answer_that_does_not_return_is_repeated_too():
    own = numpy.full(200, 0.01)
    own[5] = 3.0
    sibling = numpy.abs(0.02 * numpy.random.default_rng(1).standard_normal(300))
    once = own > 1.0
    found = simulated.judge_distances(own, [sibling], once=once)
    assert found.returned == []
    assert found.conclude() is Outcome.FAULT
