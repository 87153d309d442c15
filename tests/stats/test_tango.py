"""Test score intervals of paired proportions, and the margins that they exclude."""

import math

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.planning import least_excluded, num_pairs_to_exclude
from serve_eval.stats.score_bounds import (
    mean_score_lower_bound,
    mean_score_p,
    mean_score_z,
    score_bounds,
    score_noninferiority_p,
    score_z,
)

# down, up, n, margin -> z, p, lower, upper at alpha 0.05; by maximising the constrained likelihood
# numerically
CASES = [
    (
        86,
        150,
        1600,
        0.0,
        4.166045151386364,
        1.5496467205226027e-05,
        0.024360079661660317,
        0.05589513814343612,
    ),
    (
        10,
        8,
        1319,
        0.02,
        4.107379641161609,
        2.000865928382232e-05,
        -0.007270760001112364,
        0.004049079039039326,
    ),
    (
        0,
        0,
        200,
        0.02,
        2.020305089104421,
        0.02167587563043134,
        -0.013347160654772294,
        0.013347160654775632,
    ),
    (
        40,
        15,
        1319,
        0.04843,
        4.327414020698842,
        7.543510418967e-06,
        -0.028732042501090124,
        -0.009962037686229943,
    ),
]


@pytest.mark.parametrize(("down", "up", "n", "margin", "z", "p", "lower", "upper"), CASES)
def test_score_and_bounds_equal_a_numerical_maximum_of_the_likelihood(
    down, up, n, margin, z, p, lower, upper
):
    assert float(score_z(down, up, n, -margin)) == pytest.approx(z, abs=3e-6)
    assert score_noninferiority_p(down, up, n, margin) == pytest.approx(p, abs=3e-6)
    assert score_bounds(down, up, n, 0.05) == pytest.approx((lower, upper), abs=3e-6)


def test_the_shared_vectors_hold_to_their_tolerance(vectors):
    for vector in vectors("noninferiority"):
        inputs, expected, within = vector["inputs"], vector["expected"], vector["tolerance"]
        counts = inputs["down"], inputs["up"], inputs["n"]
        assert float(score_z(*counts, -inputs["margin"])) == pytest.approx(
            expected["z"], abs=within
        ), vector["id"]
        assert score_noninferiority_p(*counts, abs(inputs["margin"])) == pytest.approx(
            expected["p"], abs=within
        )
        lower, upper = score_bounds(*counts, inputs["alpha"])
        assert lower == pytest.approx(expected["lower"], abs=within), vector["id"]
        assert upper == pytest.approx(expected["upper"], abs=within), vector["id"]


def test_the_published_interval_of_agresti_holds():
    assert score_bounds(86, 150, 1600, 0.025) == pytest.approx((0.0214, 0.0590), abs=5e-5)


@pytest.mark.parametrize("n", [1, 2, 200, 4096])
def test_identical_answers_exclude_a_drop_that_shrinks_with_their_number(n):
    z2 = 1.6448536269514722**2
    assert score_bounds(0, 0, n, 0.05) == pytest.approx((-z2 / (n + z2), z2 / (n + z2)), abs=1e-12)


def test_all_wrong_and_all_right_lie_at_the_ends():
    assert score_bounds(10, 0, 10, 0.05)[0] == pytest.approx(-1.0, abs=1e-9)
    assert score_bounds(0, 10, 10, 0.05)[1] == pytest.approx(1.0, abs=1e-9)


def test_arrays_of_counts_give_arrays():
    together = score_z([10, 86], [8, 150], 1600, -0.01)
    assert together.tolist() == [
        float(score_z(10, 8, 1600, -0.01)),
        float(score_z(86, 150, 1600, -0.01)),
    ]


COUNTS = st.tuples(st.integers(1, 60), st.integers(0, 60), st.integers(1, 60))


@given(COUNTS, st.sampled_from([0.3, 0.05, 0.001]))
def test_one_more_right_answer_never_lowers_a_bound(counts, alpha):
    down, up, same = counts
    n = down + up + same
    before = score_bounds(down, up, n, alpha)
    for after in (score_bounds(down - 1, up, n, alpha), score_bounds(down, up + 1, n, alpha)):
        assert after[0] >= before[0] - 1e-12
        assert after[1] >= before[1] - 1e-12


@given(COUNTS)
def test_the_estimate_lies_within_the_bounds_and_z_there_is_the_quantile(
    counts,
):
    down, up, same = counts
    n = down + up + same
    lower, upper = score_bounds(down, up, n, 0.05)
    assert -1.0 <= lower <= (up - down) / n <= upper <= 1.0
    assert float(score_z(down, up, n, lower)) == pytest.approx(1.6448536, abs=1e-4)
    assert score_noninferiority_p(down, up, n, max(0.0, -lower + 1e-6)) <= 0.05 or lower > 0


def test_an_alpha_above_one_half_puts_the_bound_beyond_the_estimate():
    lower, upper = score_bounds(10, 5, 100, 0.6)
    assert upper < -0.05 < lower


def test_a_margin_of_everything_is_always_excluded():
    assert score_noninferiority_p(3, 0, 3, 1.0) == 0.0
    assert not numpy.isnan(score_z(3, 0, 3, -1.0))


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ((1, 1, 0, 0.05), "number of prompts must be 1 or more", "check how"),
        ((-1, 1, 10, 0.05), "became wrong must be 0 or more", "check how"),
        ((1, -1, 10, 0.05), "became right must be 0 or more", "check how"),
        ((6, 5, 10, 0.05), r"6 \+ 5 changed prompts are more than all 10", "once"),
        ((1, 1, 10, 0.0), "alpha must lie strictly between 0 and 1", "0.05"),
        ((1, 1, 10, 1.0), "alpha must lie strictly between 0 and 1", "0.05"),
    ],
)
def test_impossible_inputs_are_refused_with_what_to_do(arguments, message, hint):
    with pytest.raises(ServeEvalError, match=message) as caught:
        score_bounds(*arguments)
    assert hint in caught.value.hint


@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf")])
def test_a_margin_without_sense_is_refused(margin):
    with pytest.raises(
        ServeEvalError, match="the margin must be a finite number, 0 or more"
    ) as caught:
        score_noninferiority_p(1, 1, 10, margin)
    assert "without a sign" in caught.value.hint


VALUES = st.lists(
    st.sampled_from([-1.0, -2 / 3, -0.5, -1 / 3, 0.0, 1 / 3, 0.5, 1.0]), min_size=1, max_size=60
)


def _answers(down, up, n):
    return [-1.0] * down + [1.0] * up + [0.0] * (n - down - up)


@settings(max_examples=200)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 300), st.floats(-0.9, 0.9))
def test_right_or_wrong_answers_have_tangos_score(down, up, more, difference):
    n = down + up + more
    z = mean_score_z(_answers(down, up, n), difference)
    assert z == pytest.approx(float(score_z(down, up, n, difference)), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("down", "up", "n"), [(10, 8, 1319), (0, 0, 200), (5, 0, 198), (0, 7, 100), (30, 30, 60)]
)
def test_right_or_wrong_answers_have_tangos_bounds(down, up, n):
    values = _answers(down, up, n)
    assert mean_score_lower_bound(values, 0.05) == pytest.approx(
        score_bounds(down, up, n, 0.05)[0], abs=1e-9
    )
    assert mean_score_p(values, -0.02) == pytest.approx(
        score_noninferiority_p(down, up, n, 0.02), rel=1e-6
    )


def test_the_variance_under_the_hypothesis_is_the_likeliest_one():
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
def test_z_falls_as_the_hypothesis_rises(values, one, other):
    low, high = sorted((one, other))
    assert mean_score_z(values, low) >= mean_score_z(values, high) - 1e-6


@given(VALUES, st.sampled_from([0.001, 0.05, 0.5, 0.9]))
def test_the_bound_is_where_p_reaches_alpha(values, alpha):
    bound = mean_score_lower_bound(values, alpha)
    assert -1.0 <= bound <= 1.0
    if -0.99 < bound < 0.99 and abs(bound - numpy.mean(values)) > 1e-6:
        assert mean_score_p(values, bound - 1e-4) <= alpha + 1e-6
        assert mean_score_p(values, bound + 1e-4) >= alpha - 1e-6


def test_a_step_that_lands_near_the_pole_is_no_solution():
    """Newton's first step reaches the end of the bracket to 4e-13, where the sum has its pole."""
    values = [-0.666666666667] + [-0.333333333333] * 8 + [0.0] * 20 + [1.0]
    assert mean_score_z(values, 0.0) == pytest.approx(-1.25, abs=0.05)


@given(VALUES, VALUES)
def test_a_better_value_never_lowers_the_bound(values, more):
    best = [max(pair) for pair in zip(values, more * len(values), strict=False)]
    assert mean_score_lower_bound(best, 0.05) >= mean_score_lower_bound(values, 0.05) - 1e-9


@pytest.mark.parametrize(
    ("values", "alpha", "message"),
    [([], 0.05, "one or more"), ([2.0], 0.05, "outside -1..1"), ([0.0], 1.0, "alpha")],
)
def test_values_and_alpha_are_checked(values, alpha, message):
    with pytest.raises(ServeEvalError, match=message):
        mean_score_lower_bound(values, alpha)


@pytest.mark.parametrize(
    ("margin", "alpha", "needed"), [(0.01, 0.05, 268), (0.05, 0.05, 52), (0.01, 0.025, 381)]
)
def test_the_least_number_of_equal_answers(margin, alpha, needed):
    assert num_pairs_to_exclude(margin, alpha) == needed
    assert score_bounds(0, 0, needed, alpha)[0] > -margin > score_bounds(0, 0, needed - 1, alpha)[0]


@pytest.mark.parametrize("pairs", [10, 100, 1919])
def test_the_drop_that_is_not_excluded_is_the_bound(pairs):
    assert least_excluded(pairs, 0.05) == pytest.approx(-score_bounds(0, 0, pairs, 0.05)[0])


def test_impossible_parameters_are_refused():
    with pytest.raises(ServeEvalError, match="alpha"):
        least_excluded(10, 1.0)
    with pytest.raises(ServeEvalError, match="pairs"):
        least_excluded(0, 0.05)
    with pytest.raises(ServeEvalError, match="margin"):
        num_pairs_to_exclude(-0.01, 0.05)
