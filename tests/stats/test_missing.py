from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.intervals import bound_missing


@pytest.mark.parametrize(
    ("total", "scored", "planned", "low", "high"),
    [
        (279000.0, 4056, 4096, 68.115234375, 69.091796875),
        (7100.0, 100, 100, 71.0, 71.0),
        (0.0, 0, 10, 0.0, 100.0),
    ],
)
def test_bounds_of_known_cases(
    total: float, scored: int, planned: int, low: float, high: float
) -> None:
    assert bound_missing(total, scored, planned, 0.0, 100.0) == (
        pytest.approx(low),
        pytest.approx(high),
    )


def test_the_shared_vectors_hold_to_their_tolerance(shared: Path) -> None:
    vectors = json.loads((shared / "vectors" / "verdict_vectors.json").read_text())["vectors"]
    chosen = [v for v in vectors if v["kind"] == "missing_bounds"]
    assert len(chosen) == 2
    for vector in chosen:
        low, high = bound_missing(**vector["inputs"])
        assert low == pytest.approx(vector["expected"]["lower"], abs=vector["tolerance"])
        assert high == pytest.approx(vector["expected"]["upper"], abs=vector["tolerance"])


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1), st.data())
def test_the_full_mean_always_lies_within_the_bounds(
    scores: list[float], data: st.DataObject
) -> None:
    had = data.draw(st.integers(0, len(scores)))
    low, high = bound_missing(sum(scores[:had]), had, len(scores), 0.0, 1.0)
    assert low - 1e-12 <= sum(scores) / len(scores) <= high + 1e-12


@pytest.mark.parametrize(("scored", "planned"), [(1, 0), (0, 0), (3, 2), (-1, 2)])
def test_impossible_counts_are_refused(scored: int, planned: int) -> None:
    with pytest.raises(ServeEvalError):
        bound_missing(0.0, scored, planned, 0.0, 1.0)
