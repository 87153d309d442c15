"""Test the queue of bench/queueing.py against formulas."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
COUNT = 400_000


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


queueing = _module("queueing")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_exponential_services_have_the_delays_of_mm1(load: float, rng: np.random.Generator) -> None:
    arrivals = queueing.draw_poisson(load, COUNT, rng)
    services = rng.exponential(1.0, COUNT)
    delays = queueing.find_ends(arrivals, services) - arrivals
    assert delays.mean() == pytest.approx(1 / (1 - load), rel=0.05)
    for share in (0.5, 0.99):
        formula = queueing.exponential_delay(load, 1.0, share)
        assert queueing.percentile(delays, 100 * share) == pytest.approx(formula, rel=0.07)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_constant_services_have_the_wait_of_md1(load: float, rng: np.random.Generator) -> None:
    arrivals = queueing.draw_poisson(load, COUNT, rng)
    services = np.ones(COUNT)
    waits = queueing.find_ends(arrivals, services) - arrivals - services
    assert queueing.mean_wait(load, 1.0, 1.0) == pytest.approx(load / (2 * (1 - load)))
    assert waits.mean() == pytest.approx(queueing.mean_wait(load, 1.0, 1.0), rel=0.04)


def test_both_ways_to_compute_delays_agree(rng: np.random.Generator) -> None:
    arrivals, services = queueing.draw_poisson(0.7, 5000, rng), rng.exponential(1.0, 5000)
    delays = queueing.find_delays(arrivals, services, services)
    assert delays == pytest.approx(queueing.find_ends(arrivals, services) - arrivals)


def test_a_process_that_must_wake_up_has_the_wait_of_welch(rng: np.random.Generator) -> None:
    arrivals = queueing.draw_poisson(0.5, COUNT, rng)
    busy, idle = rng.exponential(1.0, COUNT), np.full(COUNT, 3.0)
    delays = queueing.find_delays(arrivals, busy, idle)
    began_idle = np.isclose(delays, 3.0)
    waits = np.where(began_idle, 0.0, delays - busy)
    formula = queueing.mean_wait_after_idle(0.5, (1.0, 2.0), (3.0, 9.0))
    assert waits.mean() == pytest.approx(formula, rel=0.04)
    same = queueing.mean_wait_after_idle(0.5, (1.0, 2.0), (1.0, 2.0))
    assert same == pytest.approx(queueing.mean_wait(0.5, 1.0, 2.0))


def test_bursts_of_many_servers_have_the_wait_of_batches(rng: np.random.Generator) -> None:
    rate, servers, step_s, service = 0.6, 500, 5000.0, 1.0
    arrivals = queueing.draw_bursts(rate, COUNT, rng, servers=servers, step_s=step_s)
    assert len(arrivals) == pytest.approx(COUNT, rel=0.02)
    services = np.full(len(arrivals), service)
    waits = queueing.find_ends(arrivals, services) - arrivals - services
    formula = queueing.mean_wait_of_batches(rate, 1.0, 1.0, rate * step_s / servers)
    # Steps come at regular intervals, not as a Poisson process, so that they wait a little less.
    assert 0.6 * formula < waits.mean() < 1.1 * formula


def test_one_server_sends_all_answers_of_a_step_at_once(rng: np.random.Generator) -> None:
    arrivals = queueing.draw_bursts(10.0, 1000, rng, servers=1, step_s=2.0)
    assert len(np.unique(arrivals)) == 50
    assert np.diff(np.unique(arrivals)) == pytest.approx(2.0)


@pytest.mark.parametrize(("rate", "length"), [(1000.0, 10.0), (50.0, 20.0)])
def test_the_slower_of_endpoint_and_client_sets_the_length(
    rate: float, length: float, rng: np.random.Generator
) -> None:
    arrivals = np.arange(1, 1001) / rate
    assert queueing.find_length(arrivals, np.array([0.01]), 1, rng) == pytest.approx(
        length, rel=0.01
    )


def test_shards_divide_the_answers(rng: np.random.Generator) -> None:
    arrivals = queueing.draw_poisson(1.0, 1000, rng)
    parts = queueing.split(arrivals, 16, rng)
    assert len(parts) == 16
    assert np.sort(np.concatenate(parts)) == pytest.approx(arrivals)


@pytest.mark.parametrize(("rate", "needed"), [(10.0, 1), (700.0, 1), (701.0, 2), (7000.0, 10)])
def test_shards_needed(rate: float, needed: int) -> None:
    assert queueing.shards_needed(rate, 0.001, 0.7) == needed
