from __future__ import annotations

import math
import random
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.stats.paired_t import paired_t
from serve_eval.stats.sign_flip import sign_flip_p


def test_few_differences_are_enumerated() -> None:
    mixed = [-2.5, -1.0, 0.0, 0.5, -3.0, 1.5, -0.25, 0.0, -4.0, 2.0]
    assert sign_flip_p(mixed) == pytest.approx(0.16015625, abs=1e-9)
    assert sign_flip_p([-1] * 6 + [1] + [0] * 5) == pytest.approx(0.0625, abs=1e-9)


def test_the_shared_vectors_hold_to_their_tolerance(vectors: Any) -> None:
    for vector in vectors("signflip"):
        p = sign_flip_p(vector["inputs"]["differences"])
        assert p == pytest.approx(vector["expected"]["p"], abs=vector["tolerance"]), vector["id"]


@given(st.integers(0, 300), st.integers(0, 300))
def test_differences_of_one_size_give_the_exact_mcnemar_test(down: int, up: int) -> None:
    assert sign_flip_p([-0.1] * down + [0.1] * up + [0.0]) == mcnemar(down, up).p_exact


def test_drawn_flips_agree_with_the_t_test_on_many_differences() -> None:
    values = numpy.random.default_rng(5).normal(-0.1, 1.0, 400)
    assert sign_flip_p(values) == pytest.approx(paired_t(values).p, abs=0.02)
    rounded = values.round(1)
    assert sign_flip_p(rounded) == pytest.approx(paired_t(rounded).p, abs=0.02)


def test_drawn_flips_agree_with_the_enumeration_of_all() -> None:
    values = [-2.5, -1.0, 0.5, -3.0, 1.5, -0.25, -4.0, 2.0, 1.1, 0.7, -0.2, -0.3, 1.9, -1.7, 0.9, -0.6]
    enumerated = sign_flip_p(values)
    assert sign_flip_p([*values, 1e-9]) == pytest.approx(enumerated, abs=0.02)


def test_clusters_are_flipped_as_a_whole() -> None:
    together = sign_flip_p([-1.0, -1.0, -2.0, -3.0, 0.5], clusters=numpy.array([0, 0, 1, 1, 2]))
    assert together == sign_flip_p([-2.0, -5.0, 0.5])


def test_weights_scale_the_differences() -> None:
    assert sign_flip_p([-1.0, 1.0, -1.0], [3.0, 1.0, 2.0]) == sign_flip_p([-3.0, 1.0, -2.0])


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=40), st.integers())
def test_the_order_of_the_samples_does_not_matter(values: list[float], seed: int) -> None:
    shuffled = random.Random(seed).sample(values, len(values))
    assert sign_flip_p(values, draws=99) == sign_flip_p(shuffled, draws=99)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "one or more numbers"),
        (([math.nan],), "position 0 is nan"),
        (([1.0], [math.inf]), "weights must be finite"),
    ],
)
def test_values_that_cannot_be_flipped_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ServeEvalError, match=message) as caught:
        sign_flip_p(*arguments)
    assert caught.value.hint


def test_at_least_one_flip_is_drawn() -> None:
    with pytest.raises(ServeEvalError, match="number of draws must be 1 or more"):
        sign_flip_p([1.0], draws=0)
