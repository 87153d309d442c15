import math
import random
from collections import Counter
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.betting import GRID
from serve_eval.stats.classic import Decision
from serve_eval.stats.early_stop import EarlyClassic
from serve_eval.stats.multiplicity import acceptance_region


def _loop(values, n, null):
    """Return the log wealth of the bet without replacement.

    It follows section 3 of the specification, for values in -1..1.
    """
    wealths, total = [1.0] * len(GRID), 0.0
    for t, x in enumerate(values, 1):
        m = (n * null - total) / (n - t + 1)
        if m < -1 - 1e-9:
            return math.inf
        if -1 + 2e-9 < m < 1:
            wealths = [w * (1 + g / (m + 1) * (x - m)) for w, g in zip(wealths, GRID, strict=True)]
        total += x
    return math.log(sum(wealths) / len(GRID))


@given(
    st.lists(st.sampled_from([-1.0, -0.25, 0.0, 0.0, 0.5, 1.0]), min_size=1, max_size=60),
    st.integers(0, 400),
)
def test_both_wealths_follow_the_recursion_of_the_paper(values, more):
    n, margin = len(values) + more + 1, 0.05
    stop = EarlyClassic.for_pairs(n, margin, eps=1e-12)
    for count, value in enumerate(values, 1):
        if stop.update([value]) is not None:
            return
        seen = values[:count]
        negated = [-x for x in seen]
        to_pass, to_fail = _loop(seen, n, -margin), _loop(negated, n, margin)
        assert stop.log_wealth_pass == pytest.approx(to_pass, abs=1e-9)
        assert stop.log_wealth_fail == pytest.approx(to_fail, abs=1e-9)


def test_identical_answers_pass_early_and_lost_ones_fail_early():
    same = EarlyClassic.for_pairs(4096, 0.01817)
    assert same.update([0.0] * 4096) is Decision.PASS
    assert same.looked_at < 0.15 * 4096
    lost = EarlyClassic.for_pairs(4096, 0.01817, max_missing=1.0)
    assert lost.update([-1.0] * 20) is Decision.FAIL
    assert lost.looked_at < 12


def test_one_value_at_a_time_decides_as_a_batch_does_and_the_decision_stays():
    values = random.Random(2).choices([-1.0, 0.0, 1.0], [0.2, 0.75, 0.05], k=300)
    batch, single = EarlyClassic.for_pairs(300, 0.02), EarlyClassic.for_pairs(300, 0.02)
    decision = batch.update(values)
    assert decision is Decision.FAIL
    for value in values:
        single.update((value,))
    assert (single.decision, single.looked_at) == (decision, batch.looked_at)
    assert single.log_wealth_fail == batch.log_wealth_fail
    assert single.update_missing(-1.0, 1.0) is decision


def test_the_reference_mean_alone_decides_later_than_pairs():
    random_ = random.Random(3)
    reference = [float(random_.random() < 0.7) for _ in range(2000)]
    candidate = [score if random_.random() > 0.02 else 1.0 - score for score in reference]
    threshold = sum(reference) / 2000 - 0.026
    with_pairs = EarlyClassic.for_pairs(2000, 0.026)
    mean_only = EarlyClassic.mean_only(2000, threshold)
    assert (
        with_pairs.update(c - r for c, r in zip(candidate, reference, strict=True)) is Decision.PASS
    )
    assert mean_only.update(candidate) is Decision.PASS
    assert with_pairs.looked_at < mean_only.looked_at < 2000


def test_points_and_proportions_stop_at_the_same_sample():
    values = random.Random(4).choices([-1.0, 0.0, 1.0], [0.02, 0.96, 0.02], k=1000)
    one, other = (
        EarlyClassic.for_pairs(1000, 0.0366),
        EarlyClassic.for_pairs(1000, 3.66, span=100.0),
    )
    one.update(values)
    other.update(100.0 * value for value in values)
    assert (one.decision, one.looked_at) == (other.decision, other.looked_at)


def test_lower_is_better_by_negation():
    stop = EarlyClassic.mean_only(500, -0.20, lo=-1.0, hi=0.0)
    assert stop.update([-0.9] * 500) is Decision.FAIL
    assert (
        EarlyClassic.mean_only(500, -0.20, lo=-1.0, hi=0.0).update([-0.01] * 500) is Decision.PASS
    )


def test_a_missing_answer_makes_both_bets_poorer():
    stop = EarlyClassic.for_pairs(100, 0.1)
    stop.update([0.0] * 5)
    before = stop.log_wealth_pass, stop.log_wealth_fail
    assert stop.update_missing(-1.0, 1.0) is None
    assert stop.log_wealth_pass < before[0]
    assert stop.log_wealth_fail < before[1]
    assert stop.looked_at == 6
    certain = EarlyClassic.for_pairs(100, 0.1, max_missing=1.0)
    assert [certain.update_missing(-1.0, -1.0) for _ in range(20)][-1] is Decision.FAIL
    certain = EarlyClassic.for_pairs(100, 0.1, max_missing=1.0)
    assert [certain.update_missing(1.0, 1.0) for _ in range(50)][-1] is Decision.PASS


# ------------------------------------------------------------------------------------------------------  # noqa: E501
# its level


def _decisions(values, runs, **options):
    """Decide on one population in random orders; None is a missing answer.

    Scores are in 0..1.
    """
    rng, found, row = random.Random(1), Counter(), list(values)
    for _ in range(runs):
        rng.shuffle(row)
        stop = EarlyClassic.mean_only(len(row), **options)
        for value in row:
            if value is None:
                stop.update_missing(0.0, 1.0)
            else:
                stop.update((value,))
            if stop.decision is not None:
                break
        found[stop.decision] += 1
    return found


def test_the_first_sample_with_the_evidence_needed_decides():
    """Require 2 / eps of one bet, and 1 / eps that at most two of a hundred are missing.

    Both are computed here.
    """
    n, eps, margin, later = 100, 0.05, 0.2, 0
    for seed in range(20):
        values = random.Random(seed).choices([-1.0, 0.0, 1.0], [0.04, 0.92, 0.04], k=n)
        wanted = next(
            t
            for t in range(1, n + 1)
            if _loop(values[:t], n, -margin) >= math.log(2 / eps)
            and 0.8 * comb(n, t) / comb(n - 3, t)
            + 0.1 * sum(comb(n - j, t) / comb(n - 3, t) for j in (1, 2))
            >= 1 / eps
        )
        stop = EarlyClassic.for_pairs(n, margin, eps=eps)
        assert stop.update(values) is Decision.PASS
        assert stop.looked_at == wanted
        quick = EarlyClassic.for_pairs(n, margin, eps=eps, max_missing=1.0)
        quick.update(values)
        wanted = next(
            t for t in range(1, n + 1) if _loop(values[:t], n, -margin) >= math.log(2 / eps)
        )
        assert quick.looked_at == wanted <= stop.looked_at
        later += wanted < stop.looked_at
    assert later


def test_a_run_whose_threshold_lies_between_its_bounds_is_decided_with_probability_eps_at_most():
    """Test the worst case.

    With the one missing answer wrong the run fails by one answer, with it right it passes by none.
    Each bet may err. With half of the evidence, 29 % would be decided.
    """
    eps, runs = 0.2, 600
    found = _decisions(
        [1.0] * 199 + [0.0] * 200 + [None], runs, threshold=0.5, eps=eps, max_missing=1.0
    )
    assert runs - found[None] <= acceptance_region(runs, eps)[1]
    assert found[Decision.PASS] > 0 < found[Decision.FAIL]


def test_one_answer_on_the_wrong_side_is_passed_and_failed_with_probability_eps_halved_at_most():
    eps, runs = 0.2, 250
    below = _decisions([1.0] * 199 + [0.0] * 201, runs, threshold=0.5, eps=eps, max_missing=1.0)
    assert below[Decision.PASS] <= acceptance_region(runs, eps / 2)[1]
    on_it = _decisions([1.0] * 200 + [0.0] * 200, runs, threshold=0.5, eps=eps, max_missing=1.0)
    assert on_it[Decision.FAIL] <= acceptance_region(runs, eps / 2)[1]


def test_missing_answers_count_as_worst_for_one_bet_and_as_best_for_the_other():
    """Eight of a hundred leave 46 to 54; either bound alone would make the verdict clear."""
    eps, runs = 0.05, 200
    values = [1.0] * 460 + [0.0] * 460 + [None] * 80
    found = _decisions(values, runs, threshold=0.5, eps=eps, max_missing=0.1)
    assert runs - found[None] <= acceptance_region(runs, eps)[1]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_run_with_one_missing_answer_too_many_is_decided_with_probability_eps_at_most(
    value,
):
    """The scores do not matter: they are all alike."""
    eps, runs, n = 0.2, 1000, 100
    found = _decisions([value] * (n - 3) + [None] * 3, runs, threshold=0.5, eps=eps)
    assert runs - found[None] <= acceptance_region(runs, eps)[1]
    allowed = _decisions([value] * (n - 2) + [None] * 2, 100, threshold=0.5, eps=eps)
    assert allowed[None] < 30


def test_what_holds_a_decision_up_is_asked_only_where_there_would_be_one():
    stop, asked = EarlyClassic.for_pairs(4096, 0.01817), []
    stop.held = lambda: bool(asked.append(stop.looked_at) or len(asked) < 5)
    assert stop.update([0.0] * 4096) is Decision.PASS
    assert asked == list(range(stop.looked_at - 4, stop.looked_at + 1))


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=4, max_size=40), st.integers(0, 10))
def test_what_is_certain_by_counting_is_never_decided_the_other_way(values, tenths):
    """Even if the mean is exactly on the threshold and the last values leave no choice."""
    margin = tenths / 10
    verdict = EarlyClassic.for_pairs(len(values), margin, eps=1e-9).update(values)
    if verdict is not None:
        full = Decision.FAIL if sum(values) / len(values) < -margin - 1e-12 else Decision.PASS
        assert verdict is full


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ({"n": 0}, "number of planned samples must be 1 or more", "check how"),
        ({"eps": 0.0}, "eps must lie strictly between 0 and 1", "proportion"),
        ({"eps": 1.0}, "eps must lie strictly between 0 and 1", "proportion"),
        ({"lo": -math.inf}, "finite range", "to the end"),
        ({"hi": -1.0}, "finite range", "to the end"),
        ({"threshold": math.nan}, "finite range and threshold", "to the end"),
    ],
)
def test_a_plan_that_cannot_stop_is_refused(arguments, message, hint):
    usual = {"n": 10, "threshold": -0.1, "lo": -1.0, "hi": 1.0, "eps": 0.01} | arguments
    with pytest.raises(ServeEvalError, match=message) as caught:
        EarlyClassic(**usual)
    assert hint in caught.value.hint


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.5, 71.0])
def test_a_value_outside_the_range_is_refused(value):
    with pytest.raises(ServeEvalError, match=r"lies outside -1\.\.1") as caught:
        EarlyClassic.for_pairs(10, 0.1).update([value])
    assert "update_missing" in caught.value.hint


def test_impossible_missing_ranges_and_surplus_values_are_refused():
    stop = EarlyClassic.for_pairs(2, 0.5, eps=1e-9)
    with pytest.raises(ServeEvalError, match=r"1\.0\.\.-1\.0 is not a range for a missing value"):
        stop.update_missing(1.0, -1.0)
    stop.update([-0.5, -0.5])
    with pytest.raises(ServeEvalError, match="more values than the 2 planned samples"):
        stop.update([0.0])
