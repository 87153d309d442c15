from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.multiplicity import benjamini_hochberg, holm


def test_a_small_family_equals_statsmodels() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02], abs=1e-9)
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
        [0.02, 0.04, 0.04, 0.02], abs=1e-9
    )


@pytest.mark.parametrize(("kind", "adjust"), [("holm", holm), ("bh", benjamini_hochberg)])
def test_the_shared_vectors_hold_to_their_tolerance(kind: str, adjust: Any, vectors: Any) -> None:
    for vector in vectors(kind):
        adjusted = adjust(vector["inputs"]["p"])
        assert adjusted == pytest.approx(vector["expected"]["adjusted"], abs=vector["tolerance"]), (
            vector["id"]
        )


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
def test_one_test_or_none_needs_no_correction(adjust: Any) -> None:
    assert adjust([]) == []
    assert adjust([0.3]) == [0.3]


P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=50)


@given(P_VALUES)
def test_adjusted_values_keep_the_order_and_holm_is_the_stricter(p: list[float]) -> None:
    strict, lenient = holm(p), benjamini_hochberg(p)
    order = sorted(range(len(p)), key=p.__getitem__)
    for earlier, later in pairwise(order):
        assert strict[earlier] <= strict[later]
        assert lenient[earlier] <= lenient[later]
    for raw, q, adjusted in zip(p, lenient, strict, strict=True):
        assert raw <= q * (1 + 1e-12) + 1e-300
        assert q <= adjusted * (1 + 1e-12) + 1e-300
        assert adjusted <= 1.0


@given(P_VALUES, st.data())
def test_a_smaller_p_never_raises_an_adjusted_value(p: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(p) - 1))
    smaller = [value / 2 if i == place else value for i, value in enumerate(p)]
    for adjust in (holm, benjamini_hochberg):
        assert all(
            a <= b * (1 + 1e-12) + 1e-300 for a, b in zip(adjust(smaller), adjust(p), strict=True)
        )


@pytest.mark.parametrize("adjust", [holm, benjamini_hochberg])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(adjust: Any, value: float) -> None:
    with pytest.raises(ServeEvalError, match="position 1 is") as caught:
        adjust([0.5, value])
    assert "leave out" in caught.value.hint
