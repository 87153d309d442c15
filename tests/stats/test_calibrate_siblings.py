"""Test a small run of the simulation of siblings, and that the table has its rows."""

from __future__ import annotations

import numpy
import pytest

from serve_eval.schema import VerificationOutcome as Outcome
from tests.measured import MEASURED
from tests.stats import calibrate_siblings as simulated

TRIALS = 25


@pytest.fixture(autouse=True)
def few(monkeypatch) -> None:
    monkeypatch.setattr(simulated, "TRIALS", TRIALS)


@pytest.fixture
def page() -> str:
    return (MEASURED / "verify.md").read_text()


@pytest.mark.parametrize("cell", simulated.HEALTHY, ids=lambda cell: cell.name)
def test_healthy_servers_are_rarely_accused(cell: simulated.Cell, page: str):
    outcomes, _ = simulated.measure(cell)
    assert sum(outcomes[one] for one in simulated.RED) <= 2
    assert f"| {cell.name} |" in page


def test_faults_are_found(page: str):
    found = {cell.name: cell for cell in simulated.list_faults()}
    for name in ("four-bit weights", "W8A8", "2 % from another state"):
        outcomes, _ = simulated.measure(found[name])
        assert sum(outcomes[one] for one in simulated.RED) >= 0.8 * TRIALS, name
    assert all(f"| {name} |" in page for name in found)


@pytest.mark.parametrize(("hits", "interval"), [(0, (0.0, 0.138)), (25, (0.862, 1.0))])
def test_the_interval_is_exact(hits: int, interval: tuple[float, float]):
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
