from __future__ import annotations

import math

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.score_bounds import (
    mean_score_lower_bound,
    mean_score_p,
    mean_score_z,
    score_bounds,
    score_noninferiority_p,
    score_z,
)

VALUES = st.lists(
    st.sampled_from([-1.0, -2 / 3, -0.5, -1 / 3, 0.0, 1 / 3, 0.5, 1.0]), min_size=1, max_size=60
)


def _answers(down: int, up: int, n: int) -> list[float]:
    return [-1.0] * down + [1.0] * up + [0.0] * (n - down - up)


@settings(max_examples=200)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 300), st.floats(-0.9, 0.9))
def test_right_or_wrong_answers_have_tangos_score(
    down: int, up: int, more: int, difference: float
) -> None:
    n = down + up + more
    z = mean_score_z(_answers(down, up, n), difference)
    assert z == pytest.approx(float(score_z(down, up, n, difference)), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("down", "up", "n"), [(10, 8, 1319), (0, 0, 200), (5, 0, 198), (0, 7, 100), (30, 30, 60)]
)
def test_right_or_wrong_answers_have_tangos_bounds(down: int, up: int, n: int) -> None:
    values = _answers(down, up, n)
    assert mean_score_lower_bound(values, 0.05) == pytest.approx(
        score_bounds(down, up, n, 0.05)[0], abs=1e-9
    )
    assert mean_score_p(values, -0.02) == pytest.approx(
        score_noninferiority_p(down, up, n, 0.02), rel=1e-6
    )


def test_the_variance_under_the_hypothesis_is_the_likeliest_one() -> None:
    """Compare with a search over all distributions on the observed values and the range's ends."""
    from scipy.optimize import minimize

    values, mean = [-0.5, 0.0, 0.0, 0.0, 0.25, 0.5], -0.2
    support = numpy.array([-1.0, -0.5, 0.0, 0.25, 0.5, 1.0])
    counts = numpy.array([0, 1, 3, 1, 1, 0])
    best = minimize(
        lambda p: -float(counts @ numpy.log(numpy.maximum(p, 1e-12))),
        numpy.array([0.3, 0.2, 0.2, 0.1, 0.1, 0.1]),
        bounds=[(1e-10, 1.0)] * 6,
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1.0},
            {"type": "eq", "fun": lambda p: support @ p - mean},
        ],
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    variance = float(best.x @ (support - mean) ** 2)
    expected = (numpy.mean(values) - mean) * math.sqrt(len(values) / variance)
    assert mean_score_z(values, mean) == pytest.approx(expected, rel=1e-3)


@given(VALUES, st.floats(-0.99, 0.99), st.floats(-0.99, 0.99))
def test_z_falls_as_the_hypothesis_rises(values: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert mean_score_z(values, low) >= mean_score_z(values, high) - 1e-6


@given(VALUES, st.sampled_from([0.001, 0.05, 0.5, 0.9]))
def test_the_bound_is_where_p_reaches_alpha(values: list[float], alpha: float) -> None:
    bound = mean_score_lower_bound(values, alpha)
    assert -1.0 <= bound <= 1.0
    if -0.99 < bound < 0.99 and abs(bound - numpy.mean(values)) > 1e-6:
        assert mean_score_p(values, bound - 1e-4) <= alpha + 1e-6
        assert mean_score_p(values, bound + 1e-4) >= alpha - 1e-6


def test_a_step_that_lands_near_the_pole_is_no_solution() -> None:
    """Newton's first step reaches the end of the bracket to 4e-13, where the sum has its pole."""
    values = [-0.666666666667] + [-0.333333333333] * 8 + [0.0] * 20 + [1.0]
    assert mean_score_z(values, 0.0) == pytest.approx(-1.25, abs=0.05)


@given(VALUES, VALUES)
def test_a_better_value_never_lowers_the_bound(values: list[float], more: list[float]) -> None:
    best = [max(pair) for pair in zip(values, more * len(values), strict=False)]
    assert mean_score_lower_bound(best, 0.05) >= mean_score_lower_bound(values, 0.05) - 1e-9


@pytest.mark.parametrize(
    ("values", "alpha", "message"),
    [([], 0.05, "one or more"), ([2.0], 0.05, "outside -1..1"), ([0.0], 1.0, "alpha")],
)
def test_values_and_alpha_are_checked(values: list[float], alpha: float, message: str) -> None:
    with pytest.raises(ServeEvalError, match=message):
        mean_score_lower_bound(values, alpha)
