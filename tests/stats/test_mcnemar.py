from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.classic import classic_test
from serve_eval.stats.sign_tests import mcnemar

# down, up -> exact, mid-p, exact two-sided
CASES = [
    (0, 0, 1.0, 1.0, 1.0),
    (4, 0, 0.0625, 0.03125, 0.125),
    (5, 1, 0.109375, 0.0625, 0.21875),
    (12, 2, 0.0064697265625, 0.003692626953125, 0.012939453125),
    (30, 15, 0.017848901777597348, 0.012948040896617392, 0.035697803555194696),
    (150, 86, 1.8579680697856933e-05, 1.446694758807714e-05, 3.7159361395713866e-05),
    (100, 75, 0.03466851206499589, 0.02959807570031241, 0.06933702412999178),
]


@pytest.mark.parametrize(("down", "up", "exact", "mid", "two_sided"), CASES)
def test_p_values_equal_sums_of_whole_numbers(
    down: int, up: int, exact: float, mid: float, two_sided: float
) -> None:
    test = mcnemar(down, up)
    assert test.p_exact == pytest.approx(exact, rel=1e-9)
    assert test.p_mid == pytest.approx(mid, rel=1e-9)
    assert test.p_exact_two_sided == pytest.approx(two_sided, rel=1e-9)


def test_the_shared_vectors_hold_to_their_tolerance(vectors: Any) -> None:
    for vector in vectors("mcnemar"):
        test = mcnemar(vector["inputs"]["down"], vector["inputs"]["up"])
        for name, value in vector["expected"].items():
            assert getattr(test, name) == pytest.approx(value, abs=vector["tolerance"]), vector[
                "id"
            ]


@pytest.mark.parametrize(
    ("alpha", "mid", "exact"), [(0.05, 4, 5), (0.05 / 40, 9, 10)], ids=["one test", "forty tests"]
)
def test_the_fewest_changes_that_can_prove_a_drop(alpha: float, mid: int, exact: int) -> None:
    assert mcnemar(mid, 0).p_mid <= alpha < mcnemar(mid - 1, 0).p_mid
    assert mcnemar(exact, 0).p_exact <= alpha < mcnemar(exact - 1, 0).p_exact


COUNT = st.integers(0, 5000)


@given(COUNT, COUNT)
def test_one_more_right_answer_never_strengthens_the_proof_of_a_drop(down: int, up: int) -> None:
    before = mcnemar(down, up)
    for after in (mcnemar(down, up + 1), mcnemar(max(0, down - 1), up)):
        assert after.p_exact >= before.p_exact - 1e-15
        assert after.p_mid >= before.p_mid - 1e-15 or (down, up) == (0, 0)


@given(COUNT, COUNT)
def test_p_values_are_probabilities_and_mid_p_is_the_smaller(down: int, up: int) -> None:
    test = mcnemar(down, up)
    assert 0.0 <= test.p_mid <= test.p_exact <= 1.0
    assert 0.0 <= test.p_exact_two_sided <= 1.0


@given(st.integers(20, 900), st.sampled_from([0.05, 0.002]), st.data())
def test_what_the_classic_test_fails_is_a_proven_drop(
    n: int, alpha: float, data: st.DataObject
) -> None:
    margin = -classic_test(n, 0.0, 50.0, alpha, 0.2).threshold / 100
    changed = data.draw(st.integers(0, n // 2))
    fewest = int((margin * n + changed) // 2) + 1
    if fewest > changed:
        return
    down = data.draw(st.integers(fewest, changed))
    up = changed - down
    if (up - down) / n < -margin:
        assert mcnemar(down, up).p_mid <= alpha


@pytest.mark.parametrize(("down", "up"), [(-1, 0), (0, -1), (1.5, 2)])
def test_impossible_counts_are_refused(down: int, up: int) -> None:
    with pytest.raises(ServeEvalError, match="number of prompts that became") as caught:
        mcnemar(down, up)
    assert caught.value.hint
