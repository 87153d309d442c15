from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.intervals import failure_rate_upper


@pytest.mark.parametrize(
    ("failures", "n", "upper"),
    [(0, 4096, 0.0007311125564754341), (41, 4096, 0.012968286817979428), (5, 5, 1.0)],
)
def test_the_upper_bound_equals_the_exact_one(failures: int, n: int, upper: float) -> None:
    assert failure_rate_upper(failures, n) == pytest.approx(upper, abs=1e-9)


def test_the_shared_vectors_hold_to_their_tolerance(vectors: Any) -> None:
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
def test_impossible_counts_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ServeEvalError, match=message) as caught:
        failure_rate_upper(*arguments)
    assert caught.value.hint
