"""Test exact probabilities, intervals of proportions and comparisons with a threshold."""

import math
import random
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.classic import Decision, classic_test, compare, decide
from serve_eval.stats.distances import count_unlikely, share_beyond
from serve_eval.stats.early_stop import EarlyClassic
from serve_eval.stats.intervals import bound_missing, wilson, wilson_of_repeats
from serve_eval.stats.sign_tests import binomial_tail, mcnemar

LARGEST = 15_000
SIZES = (7, 100, 164, 198, 1319, 4104, 12032, 14042, LARGEST)


def _sign(number):
    return (number > 0) - (number < 0)


def _value(total, n):
    """Return the value as a run computes it."""
    return 100.0 * bound_missing(total, n, n, 0.0, 1.0)[0]


@pytest.mark.parametrize("n", SIZES)
def test_every_count_on_a_threshold_passes_and_one_less_fails(n):
    for k in range(n + 1):
        exact = Fraction(100 * k, n)
        if exact.denominator > 10**6 or 10**6 % exact.denominator:
            continue  # no decimal
        threshold = float(Decimal(exact.numerator) / exact.denominator)
        assert compare(_value(k, n), threshold, n, 100.0) == 0
        assert decide((_value(k, n),) * 2, threshold, samples=n, scale=100.0) is Decision.PASS
        for near, better in ((k - 1, True), (k + 1, False)):
            if 0 <= near <= n:
                ends = (_value(near, n),) * 2
                told = decide(ends, threshold, better, samples=n, scale=100.0)
                assert told is Decision.FAIL


def test_57_of_100_is_on_57():
    assert _value(57, 100) < 57.0
    assert compare(_value(57, 100), 57.0, 100, 100.0) == 0


@st.composite
def _counts(draw):
    """Draw a count and a threshold near it, rounded to some places as people write it."""
    n = draw(st.integers(1, LARGEST))
    k = draw(st.integers(0, n))
    places = draw(st.integers(0, 9))
    near = (Decimal(100 * k) / n).quantize(Decimal(1).scaleb(-places))
    return k, n, near + draw(st.integers(-2, 2)) * Decimal(1).scaleb(-places)


@settings(max_examples=300)
@given(_counts())
def test_counts_compare_with_decimals_as_exact_numbers_do(drawn):
    k, n, threshold = drawn
    wanted = _sign(Fraction(100 * k, n) - Fraction(threshold))
    assert compare(_value(k, n), float(threshold), n, 100.0) == wanted


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 300)), min_size=1, max_size=40),
    st.integers(-3, 3),
)
def test_graded_scores_compare_as_the_decimals_that_they_are(drawn, step):
    scores = [score / 1000 for score, times in drawn for _ in range(times)]
    n = len(scores)
    exact = Fraction(sum(score * times for score, times in drawn), 10 * n)
    places = Decimal(exact.numerator) / exact.denominator
    threshold = places.quantize(Decimal("0.00001")) + step * Decimal("0.00001")
    wanted = _sign(exact - Fraction(threshold))
    assert compare(_value(math.fsum(scores), n), float(threshold), n, 100.0) == wanted


@pytest.mark.parametrize("parts", [3, 6, 7, 9, 11])
def test_sums_of_shares_that_are_no_decimals_reach_whole_numbers(parts):
    for k in range(1, parts + 1):
        total = math.fsum([k / parts] * parts * 100)
        n = 100 * parts
        if (100 * k) % parts == 0:
            assert compare(_value(total, n), float(100 * k // parts), n, 100.0) == 0


@given(st.integers(0, 200_000), st.integers(1, 200_000), st.integers(0, 4))
def test_a_rate_of_unknown_size_compares_with_decimals(edits, words, places):
    value = 100.0 * (edits / words)
    threshold = round(Decimal(100 * edits) / words, places)
    wanted = _sign(Fraction(100 * edits, words) - Fraction(threshold))
    assert compare(value, float(threshold)) == wanted


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_value_compares_too(value):
    assert compare(value, 5.0) == (1 if value > 0 else -1)


@given(st.integers(0, LARGEST), st.integers(1, LARGEST))
def test_a_value_is_on_itself(k, n):
    value = _value(min(k, n), n)
    assert compare(value, value, n, 100.0) == 0


@pytest.mark.parametrize("n", [100, 1319, 4104])
def test_an_early_stop_never_excludes_a_value_on_the_threshold(n):
    for k in (0, 1, 57 * n // 100, n - 1, n):
        for seed in range(4):
            scores = [1.0] * k + [0.0] * (n - k)
            random.Random(seed).shuffle(scores)
            test = EarlyClassic.mean_only(n, _value(k, n) / 100.0, max_missing=0.0)
            test.held = lambda: True  # it looks at all values
            test.update(scores)
            assert test.looked_at == n
            assert max(test.log_wealth_fail, test.log_wealth_pass) < 5.0


@pytest.mark.parametrize(
    ("successes", "trials", "chance", "tail"),
    [(0, 3, 0.5, 1.0), (2, 3, 0.5, 0.5), (3, 3, 0.5, 0.125), (1, 2, 0.3, 0.51), (0, 0, 0.3, 1.0)],
)
def test_the_tail_counts_this_number_and_all_above(successes, trials, chance, tail):
    assert binomial_tail(successes, trials, chance) == pytest.approx(tail)


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
def test_p_values_equal_sums_of_whole_numbers(down, up, exact, mid, two_sided):
    test = mcnemar(down, up)
    assert test.p_exact == pytest.approx(exact, rel=1e-9)
    assert test.p_mid == pytest.approx(mid, rel=1e-9)
    assert test.p_exact_two_sided == pytest.approx(two_sided, rel=1e-9)


def test_the_shared_vectors_hold_to_their_tolerance(vectors):
    for vector in vectors("mcnemar"):
        test = mcnemar(vector["inputs"]["down"], vector["inputs"]["up"])
        for name, value in vector["expected"].items():
            assert getattr(test, name) == pytest.approx(value, abs=vector["tolerance"]), vector[
                "id"
            ]


@pytest.mark.parametrize(
    ("alpha", "mid", "exact"), [(0.05, 4, 5), (0.05 / 40, 9, 10)], ids=["one test", "forty tests"]
)
def test_the_fewest_changes_that_can_prove_a_drop(alpha, mid, exact):
    assert mcnemar(mid, 0).p_mid <= alpha < mcnemar(mid - 1, 0).p_mid
    assert mcnemar(exact, 0).p_exact <= alpha < mcnemar(exact - 1, 0).p_exact


COUNT = st.integers(0, 5000)


@given(COUNT, COUNT)
def test_one_more_right_answer_never_strengthens_the_proof_of_a_drop(down, up):
    before = mcnemar(down, up)
    for after in (mcnemar(down, up + 1), mcnemar(max(0, down - 1), up)):
        assert after.p_exact >= before.p_exact - 1e-15
        assert after.p_mid >= before.p_mid - 1e-15 or (down, up) == (0, 0)


@given(COUNT, COUNT)
def test_p_values_are_probabilities_and_mid_p_is_the_smaller(down, up):
    test = mcnemar(down, up)
    assert 0.0 <= test.p_mid <= test.p_exact <= 1.0
    assert 0.0 <= test.p_exact_two_sided <= 1.0


@given(st.integers(20, 900), st.sampled_from([0.05, 0.002]), st.data())
def test_what_the_classic_test_fails_is_a_proven_drop(n, alpha, data):
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
def test_impossible_counts_are_refused(down, up):
    with pytest.raises(ServeEvalError, match="number of prompts that became") as caught:
        mcnemar(down, up)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("total", "n", "low", "high"),
    [
        # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_published_intervals_are_met(total, n, low, high):
    assert wilson(total, n, 0.05) == pytest.approx((low, high), abs=5e-5)


def test_all_right_is_the_mirror_of_all_wrong():
    low, high = wilson(20, 20, 0.05)
    assert (1 - low, 1 - high) == pytest.approx(wilson(0, 20, 0.05)[::-1])


@pytest.mark.parametrize(("total", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_impossible_sums_are_refused(total, n):
    with pytest.raises(ServeEvalError):
        wilson(total, n, 0.05)


def test_equal_repeats_are_one_answer_and_independent_ones_are_many():
    same = [1.0] * 12 + [0.0] * 18
    assert wilson_of_repeats(same, 64, 0.05) == pytest.approx(wilson(12, 30, 0.05))
    half = numpy.random.default_rng(2).binomial(64, 0.5, 30) / 64
    low, high = wilson_of_repeats(half, 64, 0.05)
    assert 0.04 < high - low < 0.06  # one answer to each question has .34
    assert wilson_of_repeats([1.0] * 30, 64, 0.05) == wilson(30, 30, 0.05)


@pytest.mark.parametrize(("a", "b"), [(50.0, 50.0), (0.2, 0.1), (20.0, 1.0)])
def test_the_interval_of_repeats_contains_the_value_of_questions_like_these(a, b):
    random = numpy.random.default_rng(9)
    inside = 0
    for _ in range(400):
        means = random.binomial(16, random.beta(a, b, 30)) / 16
        low, high = wilson_of_repeats(means, 16, 0.05)
        inside += low <= a / (a + b) <= high
    assert inside >= 0.92 * 400


@pytest.mark.parametrize("power", [1.0, 2.0, 4.0])
def test_the_tail_of_a_power_law_is_found(power):
    random = numpy.random.default_rng(7)
    limit, shares = 10.0 ** (4 / power), []
    for _ in range(200):
        values = random.pareto(power, 400) + 1
        shares.append(share_beyond(values[values < limit].tolist(), limit))
    assert math.exp(numpy.mean(numpy.log(shares))) == pytest.approx(1e-4, rel=0.9)


def test_a_normal_tail_falls_steeply():
    random = numpy.random.default_rng(7)
    values = numpy.abs(0.02 * random.standard_normal(300)).tolist()
    assert share_beyond(values, 0.25) < 1e-5


def test_what_was_seen_needs_no_estimate():
    assert share_beyond([0.0] * 90 + [1.0] * 10, 0.5) == 0.1
    assert share_beyond([0.1] * 100, 0.5) == 0.0
    assert share_beyond([0.0] * 100, 0.5) == 0.0
    assert share_beyond([0.1] * 5, 0.5) == 1.0


@pytest.mark.parametrize(("mean", "count"), [(0.0, 1), (0.005, 1), (0.02, 2), (0.1, 2), (4.0, 10)])
def test_a_number_that_is_reached_in_one_of_a_hundred_is_unlikely(mean, count):
    """4.0: the chance of 9 or more is .021, that of 10 or more .008."""
    assert count_unlikely(mean, 0.01) == count
