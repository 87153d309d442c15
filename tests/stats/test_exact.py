"""The comparison of a value with a threshold, against exact arithmetic."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.stats.classic import Decision, compare, decide
from serve_eval.stats.early_stop import EarlyClassic
from serve_eval.stats.intervals import bound_missing

LARGEST = 15_000
SIZES = (7, 100, 164, 198, 1319, 4104, 12032, 14042, LARGEST)


def _sign(number: Fraction) -> int:
    return (number > 0) - (number < 0)


def _value(total: float, n: int) -> float:
    """Return the value as a run computes it."""
    return 100.0 * bound_missing(total, n, n, 0.0, 1.0)[0]


@pytest.mark.parametrize("n", SIZES)
def test_every_count_on_a_threshold_passes_and_one_less_fails(n: int) -> None:
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


def test_57_of_100_is_on_57() -> None:
    assert _value(57, 100) < 57.0
    assert compare(_value(57, 100), 57.0, 100, 100.0) == 0


@st.composite
def _counts(draw: st.DrawFn) -> tuple[int, int, Decimal]:
    """Draw a count and a threshold near it, rounded to some places as people write it."""
    n = draw(st.integers(1, LARGEST))
    k = draw(st.integers(0, n))
    places = draw(st.integers(0, 9))
    near = (Decimal(100 * k) / n).quantize(Decimal(1).scaleb(-places))
    return k, n, near + draw(st.integers(-2, 2)) * Decimal(1).scaleb(-places)


@settings(max_examples=300)
@given(_counts())
def test_counts_compare_with_decimals_as_exact_numbers_do(drawn: tuple[int, int, Decimal]) -> None:
    k, n, threshold = drawn
    wanted = _sign(Fraction(100 * k, n) - Fraction(threshold))
    assert compare(_value(k, n), float(threshold), n, 100.0) == wanted


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 300)), min_size=1, max_size=40),
    st.integers(-3, 3),
)
def test_graded_scores_compare_as_the_decimals_that_they_are(
    drawn: list[tuple[int, int]], step: int
) -> None:
    scores = [score / 1000 for score, times in drawn for _ in range(times)]
    n = len(scores)
    exact = Fraction(sum(score * times for score, times in drawn), 10 * n)
    places = Decimal(exact.numerator) / exact.denominator
    threshold = places.quantize(Decimal("0.00001")) + step * Decimal("0.00001")
    wanted = _sign(exact - Fraction(threshold))
    assert compare(_value(math.fsum(scores), n), float(threshold), n, 100.0) == wanted


@pytest.mark.parametrize("parts", [3, 6, 7, 9, 11])
def test_sums_of_shares_that_are_no_decimals_reach_whole_numbers(parts: int) -> None:
    for k in range(1, parts + 1):
        total = math.fsum([k / parts] * parts * 100)
        n = 100 * parts
        if (100 * k) % parts == 0:
            assert compare(_value(total, n), float(100 * k // parts), n, 100.0) == 0


@given(st.integers(0, 200_000), st.integers(1, 200_000), st.integers(0, 4))
def test_a_rate_of_unknown_size_compares_with_decimals(edits: int, words: int, places: int) -> None:
    value = 100.0 * (edits / words)
    threshold = round(Decimal(100 * edits) / words, places)
    wanted = _sign(Fraction(100 * edits, words) - Fraction(threshold))
    assert compare(value, float(threshold)) == wanted


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_an_infinite_value_compares_too(value: float) -> None:
    assert compare(value, 5.0) == (1 if value > 0 else -1)


@given(st.integers(0, LARGEST), st.integers(1, LARGEST))
def test_a_value_is_on_itself(k: int, n: int) -> None:
    value = _value(min(k, n), n)
    assert compare(value, value, n, 100.0) == 0


@pytest.mark.parametrize("n", [100, 1319, 4104])
def test_an_early_stop_never_excludes_a_value_on_the_threshold(n: int) -> None:
    for k in (0, 1, 57 * n // 100, n - 1, n):
        for seed in range(4):
            scores = [1.0] * k + [0.0] * (n - k)
            random.Random(seed).shuffle(scores)
            test = EarlyClassic.mean_only(n, _value(k, n) / 100.0, max_missing=0.0)
            test.held = lambda: True  # it looks at all values
            test.update(scores)
            assert test.looked_at == n
            assert max(test.log_wealth_fail, test.log_wealth_pass) < 5.0
