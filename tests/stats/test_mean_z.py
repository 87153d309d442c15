"""The p of a mean of z-values: valid for any dependence of normal tests, and without an order."""

from __future__ import annotations

from random import Random

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.multiplicity import mean_z_p

P = st.floats(0.0, 1.0)


@given(st.lists(P, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_it_lies_between_the_p_values_and_has_no_order(ps: list[float], random: Random) -> None:
    found = mean_z_p(ps)
    assert min(ps) - 1e-12 <= found <= max(ps) + 1e-12
    assert found == pytest.approx(mean_z_p(random.sample(ps, len(ps))))


@pytest.mark.parametrize("p", [0.001, 0.04, 0.5, 0.9])
def test_equal_p_values_stay(p: float) -> None:
    assert mean_z_p([p, p, p]) == pytest.approx(p)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
def test_it_holds_its_level_however_the_tests_depend(correlation: float) -> None:
    """4000 simulated triples: the share of p up to 0.05 is at most 0.05 but for chance."""
    from scipy.special import ndtr

    random = numpy.random.default_rng(5)
    shared = random.standard_normal((4000, 1))
    own = random.standard_normal((4000, 3))
    z = numpy.sqrt(correlation) * shared + numpy.sqrt(1 - correlation) * own
    share = numpy.mean([mean_z_p(list(map(float, row))) <= 0.05 for row in ndtr(z)])
    assert share <= 0.05 + 3 * (0.05 * 0.95 / 4000) ** 0.5


@pytest.mark.parametrize("wrong", [[], [1.1], [-0.1, 0.5]])
def test_what_is_no_p_is_refused(wrong: list[float]) -> None:
    with pytest.raises(ServeEvalError, match="p-values between 0 and 1 are needed"):
        mean_z_p(wrong)
