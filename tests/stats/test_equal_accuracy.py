"""Test the hypothesis of another build of equal accuracy, which may be steadier."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from serve_eval.errors import ServeEvalError
from serve_eval.stats import drop
from serve_eval.stats.drop import Method, drop_test, equal_accuracy_test
from serve_eval.stats.multiplicity import acceptance_region
from serve_eval.stats.paired_t import average_largest_gain
from serve_eval.stats.pairs import Pairs, pair
from serve_eval.stats.permutation import sign_flip_test

REPLICATES = 300


@pytest.mark.parametrize(("lost", "factor"), [(4, 1.0), (5, 1.0), (6, 1.05), (9, 7.0)])
def test_a_steady_build_loses_a_binomial_number_of_prompts(lost: int, factor: float) -> None:
    """A reference that is known to be right with .97 against a build that always answers alike.

    With many lost prompts the end of the range, whole prompts won, makes p larger, never smaller.
    """
    found = equal_accuracy_test([-0.97] * lost + [0.03] * (100 - lost))
    above, at = binom.sf(lost, 100, 0.03), binom.pmf(lost, 100, 0.03)
    assert 1.0 - 1e-6 <= found.p_exact / (above + at) <= factor + 1e-6
    assert 1.0 - 1e-6 <= found.p_mid / (above + at / 2.0) <= factor + 1e-6


def test_a_prompt_that_was_not_won_could_have_been() -> None:
    """100 prompts that are right with .03 on one side, and never on the other."""
    assert equal_accuracy_test([-0.03] * 100).p_exact == pytest.approx((1 / 1.03) ** 100, rel=1e-6)
    assert sign_flip_test([-0.03] * 100).p_exact < 1e-20


def test_the_end_is_the_largest_gain_that_a_prompt_could_have() -> None:
    """Prompts that are right half of the time can gain half an answer on average, not a whole."""
    values = [-0.25, -0.125, 0.0, 0.125, -0.25] * 6
    assert equal_accuracy_test(values, 0.55).p_mid < 0.5 * equal_accuracy_test(values).p_mid
    assert equal_accuracy_test(values, 0.01).p_mid == equal_accuracy_test(values, 0.125).p_mid
    pairs = pair([[0.0, 1.0]] * 2, [[0.0, 1.0]] * 2, lo=0, hi=1, higher_is_better=True)
    assert average_largest_gain(pairs, at_best=False) == 1.0
    half = pair([[0, 1], [1, 0]], [[1, 0], [0, 1]], lo=0, hi=1, higher_is_better=False)
    assert average_largest_gain(half, at_best=False) == 0.5


def test_a_total_loss_is_proven_although_nothing_could_be_gained() -> None:
    assert equal_accuracy_test([-1.0] * 30, 0.0).p_exact == pytest.approx(0.5**30)
    lost = pair(numpy.ones((3, 30)), numpy.zeros((3, 30)), lo=0, hi=1, higher_is_better=True)
    assert (drop_test(lost).p or 1.0) < 1e-9


def test_no_change_and_equal_means_are_no_drop() -> None:
    assert equal_accuracy_test([0.0] * 50).p_mid == 1.0
    assert equal_accuracy_test([0.25, -0.25] * 20).p_mid == pytest.approx(0.5, abs=1e-9)


@given(
    st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0]), min_size=10, max_size=60)
)
@settings(max_examples=60)
def test_a_drop_and_its_mirrored_gain_have_opposite_chances(values: list[float]) -> None:
    if not any(values):
        return
    down, up = equal_accuracy_test(values), equal_accuracy_test([-value for value in values])
    assert down.p_mid == pytest.approx(1.0 - up.p_mid, abs=1e-9)
    assert 0.0 <= down.p_mid <= down.p_exact <= 1.0 + 1e-12


def test_many_symmetric_differences_agree_with_sign_flips() -> None:
    random = numpy.random.default_rng(3)
    for shift in (0.0, 0.02, 0.05):
        values = random.choice([-2 / 3, -1 / 3, 0.0, 1 / 3, 2 / 3], 600) - shift * (
            random.random(600) < 0.3
        )
        values = values.clip(-1.0, 1.0)
        assert equal_accuracy_test(values).p_mid == pytest.approx(
            sign_flip_test(values).p_mid, abs=0.012
        )


def test_the_saddlepoint_agrees_with_the_exact_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    random = numpy.random.default_rng(5)
    samples = [
        random.choice([-0.7, -0.3, 0.0, 0.1, 0.4], 60, p=[share, 0.2, 0.4, 0.2, 0.2 - share])
        for share in (0.05, 0.1, 0.15)
    ]
    exact = [equal_accuracy_test(values).p_mid for values in samples]
    monkeypatch.setattr(drop, "MAX_GRID", 0)
    assert [equal_accuracy_test(values).p_mid for values in samples] == pytest.approx(
        exact, rel=0.05
    )


def test_values_beyond_the_range_are_refused() -> None:
    with pytest.raises(ServeEvalError, match=r"outside -1\.\.1"):
        equal_accuracy_test([1.5, 0.0])


@pytest.mark.parametrize("clustered", [False, True])
def test_scores_without_a_range_are_scaled_to_the_largest_change(clustered: bool) -> None:
    random = numpy.random.default_rng(8)
    usual = random.normal(0.0, 5.0, 60)
    reference = usual + random.normal(0.0, 1.0, (3, 60))

    def test(lost: float) -> float:
        candidate = usual - lost + random.normal(0.0, 1.0, (2, 60))
        pairs = pair(
            reference, candidate, lo=-numpy.inf, hi=numpy.inf, higher_is_better=True,
            clusters=[i // 2 for i in range(60)] if clustered else None,
        )  # fmt: skip
        found = drop_test(pairs)
        assert found.method is Method.PERMUTATION
        assert found.p is not None
        return found.p

    assert test(0.0) > 0.05
    assert test(0.6) < 0.01


def _steadier(random: numpy.random.Generator, n: int, chance: float) -> Pairs:
    """Pair runs that are right with `chance` with 8 of a build that always answers alike."""
    steady = numpy.repeat([(random.random(n) < chance) * 1.0], 8, axis=0)
    runs = (random.random((8, n)) < chance) * 1.0
    return pair(runs, steady, lo=0.0, hi=1.0, higher_is_better=True)


def test_a_steadier_build_of_equal_accuracy_is_no_drop() -> None:
    """Sign flips alone call 13 % of these builds worse."""
    random = numpy.random.default_rng(11)
    pairs = [_steadier(random, 100, 0.03) for _ in range(REPLICATES)]
    proven = sum((drop_test(one).p or 0.0) <= 0.05 for one in pairs)
    flips = sum((drop_test(one, Method.SIGN_FLIP).p or 0.0) <= 0.05 for one in pairs)
    most = acceptance_region(REPLICATES, 0.05)[1]
    assert proven <= most < flips


def test_suites_of_forty_steadier_builds_keep_their_level() -> None:
    """Under Holm's correction a test has the level .05 / 40, deep in the tail."""
    random = numpy.random.default_rng(12)
    pairs = [_steadier(random, 30, 0.1) for _ in range(REPLICATES)]
    proven = sum((drop_test(one).p or 0.0) <= 0.05 / 40 for one in pairs)
    flips = sum((drop_test(one, Method.SIGN_FLIP).p or 0.0) <= 0.05 / 40 for one in pairs)
    assert proven <= 2 < 6 <= flips  # 3 or more have a chance of .007
