"""Test the floor of measured distances by tables and by all lists of distances."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.evidence.probes.floor import (
    GONE,
    count_unmeasured,
    find_floor,
    is_measured,
    keep_measured,
    limits_of,
)
from serve_eval.schema import ProbeDistance, Verification

NATS = st.floats(0, 100)


def _distance(nats: float = 0.1, **options: bool) -> ProbeDistance:
    return ProbeDistance(probe="p", nats=nats, **options)


@pytest.mark.parametrize(
    ("count", "beyond"),
    [(1, 0), (58, 0), (92, 0), (93, 1), (123, 1), (124, 2), (152, 2), (153, 3), (181, 4)],
)
def test_the_floor_is_wilks_tolerance_limit(count: int, beyond: int) -> None:
    """The numbers of observations are those of Wilks' tables for 95 %, 95 %."""
    assert find_floor([100.0 + one for one in range(count)]) == 99.0 + count - beyond


@given(st.lists(NATS, min_size=1, max_size=200), NATS)
def test_no_probe_sets_the_floor_alone(nats: list[float], one: float) -> None:
    assert find_floor([*nats, one]) <= max(3 * max(nats), 0.0)
    assert 0.0 <= find_floor(nats) <= max(nats)


def test_without_distances_the_floor_is_zero() -> None:
    assert find_floor([]) == 0.0


def test_only_listed_log_probabilities_are_measured() -> None:
    placeholders = [
        None,
        _distance(at_least=True),
        _distance(texts_only=True),
        _distance(GONE),
        _distance(9999.0),
    ]
    assert not any(is_measured(one) for one in placeholders if one is not None)
    assert keep_measured([*placeholders, _distance(0.2)]) == [0.2]
    assert count_unmeasured([*placeholders, _distance(0.2)]) == 5


@pytest.mark.parametrize(("measured", "far"), [(False, 0.9), (True, 0.5)])
def test_the_limits_of_a_result_know_who_measured_its_floor(measured: bool, far: float) -> None:
    """Only a given floor says that a fault is three floors away."""
    result = Verification(
        started_at="",
        wall_s=1.0,
        reference="r",
        noise=0.01,
        step=0.001,
        floor=0.3,
        floor_measured=measured,
        sibling_median=0.1,
        reference_requests=1,
        prompt_lengths=(1, 2),
        salted=True,
        warnings=(),
        sides=(),
        exit_code=0,
    )
    limits = limits_of(result)
    assert (limits.measured, limits.typical, limits.far) == (measured, 0.1, pytest.approx(far))
