"""Test the statistics of missing answers, availability and low scores."""

from __future__ import annotations

import json
import math
import statistics
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.contingency import find_cut
from serve_eval.stats.early_stop import ON_NONE, log_wealth, most_missing
from serve_eval.stats.intervals import bound_missing, failure_rate_upper


def _probability(planned: int, all_missing: int, pattern: tuple[bool, ...]) -> Fraction:
    """Return the probability of a prefix with exactly these answers missing.

    It is built one prompt at a time.
    """
    found, left, missing = Fraction(1), planned, all_missing
    for lost in pattern:
        found *= Fraction(max(0, missing if lost else left - missing), left)
        left, missing = left - 1, missing - lost
    return found


def _wealth(planned: int, most: int, pattern: tuple[bool, ...]) -> float:
    return math.exp(log_wealth(planned, most, len(pattern), sum(pattern)))


@pytest.mark.parametrize(
    ("planned", "most", "length"), [(8, 2, 5), (10, 0, 6), (9, 4, 7), (7, 7, 4)]
)
def test_the_wealth_is_the_averaged_ratio_of_probabilities(
    planned: int, most: int, length: int
) -> None:
    for pattern in product((False, True), repeat=length):
        null = _probability(planned, most + 1, pattern) if most < planned else Fraction(0)
        if sum(pattern) > most:
            assert _wealth(planned, most, pattern) == 0.0
        elif not null:
            assert _wealth(planned, most, pattern) == math.inf
        else:
            weights = [ON_NONE] + [(1 - ON_NONE) / most] * most if most else [1.0]
            wanted = sum(
                w * float(_probability(planned, j, pattern) / null) for j, w in enumerate(weights)
            )
            assert _wealth(planned, most, pattern) == pytest.approx(wanted)


@given(st.integers(2, 12), st.data())
def test_it_grows_on_average_for_no_number_of_missing_ones_above_the_most(
    planned: int, data: st.DataObject
) -> None:
    most = data.draw(st.integers(0, planned - 1))
    truth = data.draw(st.integers(most + 1, planned))
    missing = data.draw(st.integers(0, most))
    looked_at = data.draw(st.integers(missing, planned - 1))
    if looked_at - missing > planned - truth:
        return
    left, lost = planned - looked_at, truth - missing
    now = math.exp(log_wealth(planned, most, looked_at, missing))
    later = 0.0
    if lost:
        later += lost / left * math.exp(log_wealth(planned, most, looked_at + 1, missing + 1))
    if left > lost:
        later += (left - lost) / left * math.exp(log_wealth(planned, most, looked_at + 1, missing))
    assert later <= now * (1 + 1e-9)


@pytest.mark.parametrize(
    ("planned", "share", "most"),
    [
        (100, 0.02, 2),
        (198, 0.02, 3),
        (30, 0.02, 0),
        (100, 0.29, 29),
        (100, 0.07, 7),
        (150, 0.02, 3),
        (9, 1.0, 9),
    ],
)
def test_the_most_is_the_largest_number_that_the_whole_run_is_judged_with(
    planned: int, share: float, most: int
) -> None:
    assert most_missing(planned, share) == most
    assert most / planned <= share
    assert most == planned or (most + 1) / planned > share


@pytest.mark.parametrize(
    ("planned", "asked"), [(30, 30), (100, 82), (198, 143), (1319, 226), (4096, 246)]
)
def test_what_it_takes_where_nothing_is_missing(planned: int, asked: int) -> None:
    """Knowing at .01 that at most 2 % will be missing takes nearly all of a small run."""
    most = most_missing(planned, 0.02)
    first = next(
        k for k in range(1, planned + 1) if log_wealth(planned, most, k, 0) >= math.log(100)
    )
    assert first == asked


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


@pytest.mark.parametrize(
    ("failures", "n", "upper"),
    [(0, 4096, 0.0007311125564754341), (41, 4096, 0.012968286817979428), (5, 5, 1.0)],
)
def test_the_upper_bound_equals_the_exact_one(failures: int, n: int, upper: float) -> None:
    assert failure_rate_upper(failures, n) == pytest.approx(upper, abs=1e-9)


def test_the_shared_vectors_hold_to_their_tolerance_availability(vectors: Any) -> None:
    for vector in vectors("clopper_pearson_upper"):
        upper = failure_rate_upper(**vector["inputs"])
        assert upper == pytest.approx(vector["expected"]["upper"], abs=vector["tolerance"]), vector[
            "id"
        ]


@given(st.integers(1, 5000), st.data())
def test_one_more_failure_raises_the_bound_and_it_lies_above_the_share(
    n: int, data: st.DataObject
) -> None:
    failures = data.draw(st.integers(0, n - 1))
    upper = failure_rate_upper(failures, n)
    assert failures / n < upper < failure_rate_upper(failures + 1, n)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "number of requests must be 1 or more"),
        ((-1, 5), "number of failures must be 0 or more"),
        ((6, 5), "6 of 5 requests cannot have failed"),
        ((1, 5, 1.0), "confidence must lie strictly between"),
    ],
)
def test_impossible_counts_are_refused_availability(
    arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ServeEvalError, match=message) as caught:
        failure_rate_upper(*arguments)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("values", "best", "low"),
    [
        ([0.5] * 60 + [1.0] * 40, 1.0, 60),
        ([0.5] * 99 + [1.0], 1.0, 99),
        ([0.5] * 100, 1.0, 100),
        ([0.5] * 100, None, 0),
        ([1.0] * 100, 1.0, 0),
        ([0.5] * 5 + [1.0] * 95, 1.0, 5),
        ([0.0] * 2 + [0.5] * 60 + [1.0] * 38, 1.0, 62),
        ([0.5] * 20 + [0.75] * 60 + [1.0] * 20, 1.0, 20),
        ([0.0] * 30 + [1.0] * 70, 1.0, 30),
        ([-7.0, -5.0, -3.0], None, 1),
    ],
)
def test_the_lower_half_of_scores_with_ties(
    values: list[float], best: float | None, low: int
) -> None:
    cut = find_cut(values, best)
    assert sum(value < cut for value in values) == low


@given(st.lists(st.floats(0, 1), min_size=1, unique=True))
def test_of_different_scores_the_lower_half_is_that_of_the_median(values: list[float]) -> None:
    cut = find_cut(values)
    below = sum(value < statistics.median(values) for value in values)
    assert sum(value < cut for value in values) == below or len(values) == 1


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1))
def test_something_is_low_unless_all_scores_are_the_best(values: list[float]) -> None:
    assert any(value < find_cut(values, 1.0) for value in values) == (min(values) < 1.0)
