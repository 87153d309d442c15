from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.paired_t import PairedT, paired_t

# 24 ROUGE differences in points; expected values by scipy's ttest_rel, by definition and by
# statsmodels.
DIFFERENCES = [-0.73, -1.76, -8.75, -2.82, -1.35, -0.86, -5.79, -2.63, -4.14, -3.63, 1.98, -3.62]
DIFFERENCES += [-1.3, 1.45, -2.95, -1.54, -0.87, -1.01, -4.88, -0.97, 2.88, -5.84, 1.38, -0.84]
CLUSTERS = numpy.repeat(numpy.arange(6), 4)


def test_the_plain_case_is_the_paired_t_test() -> None:
    test = paired_t(DIFFERENCES)
    assert (test.mean, test.se) == pytest.approx(
        (-2.0245833333333336, 0.5492488214042972), abs=1e-9
    )
    assert test.df == 23
    assert test.p == pytest.approx(0.0006112006973322913, abs=1e-9)


def test_weights_follow_the_definition() -> None:
    test = paired_t(DIFFERENCES, [2.0] * 8 + [1.0] * 16)
    assert (test.mean, test.se) == pytest.approx((-2.29, 0.5957374061322802), abs=1e-9)
    assert test.p == pytest.approx(0.00041406516219435026, abs=1e-9)


def test_clusters_give_the_standard_error_of_miller_times_the_small_sample_factor() -> None:
    test = paired_t(DIFFERENCES, clusters=CLUSTERS)
    assert test.se * math.sqrt(5 / 6) == pytest.approx(0.39566988584527724, abs=1e-9)
    assert test.df == 5


def test_equivalence_equals_two_one_sided_tests() -> None:
    assert paired_t(DIFFERENCES).equivalence_p(2.571) == pytest.approx(
        0.16508211427211825, abs=1e-9
    )


def test_the_shared_vectors_hold_to_their_tolerance(vectors: Any) -> None:
    for vector in vectors("paired_t"):
        inputs, expected = vector["inputs"], vector["expected"]
        differences = numpy.subtract(inputs["test"], inputs["reference"])
        test = paired_t(differences, inputs.get("weights"))
        for name, value in expected.items():
            assert getattr(test, name) == pytest.approx(value, abs=vector["tolerance"]), vector[
                "id"
            ]
    for vector in vectors("clustered_se"):
        codes = numpy.array(vector["inputs"]["cluster"])
        groups = len(set(codes.tolist()))
        test = paired_t(vector["inputs"]["differences"], clusters=codes)
        without_factor = test.se * math.sqrt((groups - 1) / groups)
        assert without_factor == pytest.approx(vector["expected"]["se"], abs=vector["tolerance"])
    for vector in vectors("tost"):
        test = paired_t(numpy.subtract(vector["inputs"]["test"], vector["inputs"]["reference"]))
        p = test.equivalence_p(vector["inputs"]["margin"])
        assert p == pytest.approx(vector["expected"]["p"], abs=vector["tolerance"])


def test_a_bound_excludes_what_its_test_rejects() -> None:
    test = paired_t(DIFFERENCES)
    lower, upper = test.bounds(0.05)
    assert test.noninferiority_p(-lower) == pytest.approx(0.05)
    assert upper - test.mean == pytest.approx(test.mean - lower)


@pytest.mark.parametrize(("value", "p"), [(-0.1, 0.0), (0.0, 1.0), (0.1, 1.0)])
def test_differences_that_are_all_equal_need_no_spread(value: float, p: float) -> None:
    test = paired_t([value] * 7)
    assert (test.mean, test.se, test.p) == (value, 0.0, p)
    assert test.bounds(0.05) == (value, value)
    assert paired_t([value] * 7, [0.1, 0.7, 0.3, 1, 1, 1, 1]).p == p


def test_clusters_that_are_all_equal_need_no_spread_either() -> None:
    assert paired_t([-0.1, -0.3, -0.1, -0.3], clusters=numpy.array([0, 0, 1, 1])).se == 0.0


def test_a_prompt_without_weight_is_no_evidence() -> None:
    with_it, without = paired_t([-1, 0, 2, 5], [1, 1, 1, 0]), paired_t([-1, 0, 2])
    assert (with_it.mean, with_it.se, with_it.df) == pytest.approx(
        (without.mean, without.se, without.df)
    )


@given(st.lists(st.floats(-1, 1), min_size=2), st.randoms())
def test_the_order_of_the_samples_does_not_matter(values: list[float], random: Any) -> None:
    shuffled = random.sample(values, len(values))
    one, other = paired_t(values), paired_t(shuffled)
    assert (one.mean, one.df) == pytest.approx((other.mean, other.df), abs=1e-12)
    assert one.se == pytest.approx(other.se, abs=1e-9)


@given(st.lists(st.floats(-1, 1), min_size=3), st.floats(0, 1))
def test_a_gain_on_every_prompt_never_strengthens_the_proof_of_a_drop(
    values: list[float], gain: float
) -> None:
    before, after = paired_t(values), paired_t([value + gain for value in values])
    if before.se > 1e-6:
        assert after.p >= before.p - 1e-9
        assert after.noninferiority_p(0.1) <= before.noninferiority_p(0.1) + 1e-9


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (([],), "the differences must be a list of one or more numbers", "at least one sample"),
        (([1.0],), "cannot be estimated from 1 independent pairs", "at least two"),
        (([1.0, math.nan],), "position 1 is nan", "NaN"),
        (([math.inf, 1.0],), "position 0 is inf", "NaN"),
        (([1.0, 2.0], [1.0, 0.0]), "from 1 independent pairs", "at least two"),
        (([1.0, 2.0], None, numpy.array([0, 0])), "from 1 independent pairs", "at least two"),
    ],
)
def test_what_has_no_spread_is_refused(arguments: tuple[Any, ...], message: str, hint: str) -> None:
    with pytest.raises(ServeEvalError, match=message) as caught:
        paired_t(*arguments)
    assert hint in caught.value.hint


def test_bounds_and_margins_check_their_parameters() -> None:
    test = PairedT(mean=0.0, se=0.1, df=9)
    with pytest.raises(ServeEvalError, match="alpha"):
        test.bounds(1.0)
    with pytest.raises(ServeEvalError, match="margin"):
        test.equivalence_p(-1.0)
