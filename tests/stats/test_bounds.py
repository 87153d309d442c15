from __future__ import annotations

import math
from typing import Any

import numpy
import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.bounds import BoundsMethod, bounds, equivalence, noninferiority
from serve_eval.stats.paired_t import paired_t
from serve_eval.stats.pairs import Pairs, pair

NAN = math.nan


def _right_or_wrong(down: int, up: int, n: int, missing: int = 0) -> Pairs:
    """Return pairs with the given counts; the reference has the missing ones right."""
    same = n - down - up - missing
    reference = [1.0] * down + [0.0] * up + [1.0] * (same + missing)
    candidate = [0.0] * down + [1.0] * up + [1.0] * same + [NAN] * missing
    return pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)


def _texts(differences: Any, **options: Any) -> Pairs:
    shift = numpy.asarray(differences, dtype=float)
    lo, hi = options.pop("range", (0.0, 1.0))
    return pair(
        numpy.full(len(shift), 0.5), 0.5 + shift, lo=lo, hi=hi, higher_is_better=True, **options
    )


def test_right_or_wrong_answers_take_the_score_bounds() -> None:
    result = bounds(_right_or_wrong(10, 8, 1319), 0.05)
    assert result.method is BoundsMethod.TANGO
    assert (result.lower, result.upper) == pytest.approx(
        (-0.007270760001112364, 0.004049079039039326), abs=3e-6
    )


def test_scores_within_a_range_take_the_score_bounds_for_any_values() -> None:
    differences = numpy.random.default_rng(1).normal(-0.01, 0.1, 1000).clip(-0.4, 0.4)
    pairs = _texts(differences)
    result = bounds(pairs, 0.05)
    assert result.method is BoundsMethod.SCORE
    assert (result.lower, result.upper) == pytest.approx(
        paired_t(differences).bounds(0.05), abs=1e-3
    )
    assert (
        noninferiority(pairs, -result.lower + 1e-6, 0.05).p
        < 0.05
        < noninferiority(pairs, -result.lower - 1e-6, 0.05).p
    )


def test_many_changes_without_a_range_take_the_t_bounds() -> None:
    differences = numpy.random.default_rng(1).normal(-0.01, 0.1, 200)
    pairs = _texts(differences, range=(-math.inf, math.inf))
    result = bounds(pairs, 0.05)
    assert result.method is BoundsMethod.T
    assert (result.lower, result.upper) == pytest.approx(paired_t(differences).bounds(0.05))
    assert noninferiority(pairs, 0.05, 0.05).p == pytest.approx(
        paired_t(differences).noninferiority_p(0.05)
    )


def test_few_changed_texts_prove_less_than_the_t_bounds_say() -> None:
    differences = numpy.zeros(500)
    differences[:10] = -0.2
    pairs = _texts(differences)
    result = bounds(pairs, 0.05)
    assert -1.0 <= result.lower < paired_t(differences).bounds(0.05)[0] < -0.004


def test_one_answer_of_half_a_point_moves_the_bound_by_less_than_one_answer() -> None:
    """Use 1319 prompts, 10 lost and 10 won, as GSM8K scores them: the mean of two filters."""
    reference, candidate = numpy.ones(1319), numpy.ones(1319)
    candidate[:10] = reference[10:20] = 0.0
    plain = pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)
    candidate[20] = 0.5
    graded = pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)
    assert noninferiority(plain, 0.01, 0.05).holds
    assert noninferiority(graded, 0.01, 0.05).holds
    assert bounds(graded, 0.05).lower == pytest.approx(bounds(plain, 0.05).lower, abs=1 / 1319)


def test_one_pair_of_texts_excludes_what_one_right_or_wrong_pair_does() -> None:
    assert bounds(_texts([0.0]), 0.05).lower == pytest.approx(
        bounds(_right_or_wrong(0, 0, 1), 0.05).lower, abs=1e-9
    )


def test_clusters_and_weights_widen_the_bounds() -> None:
    differences = numpy.zeros(400)
    plain = bounds(_texts(differences), 0.05).lower
    grouped = bounds(_texts(differences, clusters=[i // 4 for i in range(400)]), 0.05).lower
    weighted = bounds(_texts(differences, weights=[1.0 + i % 3 for i in range(400)]), 0.05).lower
    assert grouped < plain
    assert weighted < plain


def test_points_and_proportions_have_the_same_bounds() -> None:
    differences = numpy.zeros(100)
    differences[:5] = -0.25
    points = pair(
        numpy.full(100, 50.0), 50.0 + 100 * differences, lo=0.0, hi=100.0, higher_is_better=True
    )
    assert bounds(points, 0.05).lower == pytest.approx(
        100 * bounds(_texts(differences), 0.05).lower
    )


def test_few_changes_in_a_metric_without_a_range_say_nothing() -> None:
    pairs = _texts([0.0] * 50, range=(-math.inf, math.inf))
    result = bounds(pairs, 0.05)
    assert (result.method, result.lower, result.upper) == (BoundsMethod.NONE, -math.inf, math.inf)
    assert noninferiority(pairs, 0.1, 0.05) == equivalence(pairs, 0.1, 0.05)
    assert not noninferiority(pairs, 0.1, 0.05).holds


def test_missing_answers_lower_the_lower_bound_and_raise_the_upper_one() -> None:
    full, open_pairs = (
        bounds(_right_or_wrong(10, 8, 1000), 0.05),
        bounds(_right_or_wrong(10, 8, 1000, 20), 0.05),
    )
    assert open_pairs.lower < full.lower == pytest.approx(open_pairs.lower_at_best)
    assert open_pairs.lower == bounds(_right_or_wrong(30, 8, 1000), 0.05).lower


def test_a_small_margin_needs_more_prompts_than_a_large_one() -> None:
    pairs = _right_or_wrong(10, 8, 1319)
    assert noninferiority(pairs, 0.02, 0.05).holds
    assert noninferiority(pairs, 0.02, 0.05).p == pytest.approx(2.000865928382232e-05, abs=3e-6)
    assert not noninferiority(pairs, 0.005, 0.05).holds


def test_a_gain_is_non_inferior_but_not_equivalent() -> None:
    pairs = _right_or_wrong(5, 60, 1000)
    assert noninferiority(pairs, 0.02, 0.05).holds
    assert not equivalence(pairs, 0.02, 0.05).holds
    assert equivalence(pairs, 0.1, 0.05).holds
    assert equivalence(pairs, 0.1, 0.05).p <= 0.05 < equivalence(pairs, 0.02, 0.05).p


@pytest.mark.parametrize(
    ("margin", "alpha", "message"), [(-0.1, 0.05, "margin"), (0.1, 0.0, "alpha")]
)
def test_margin_and_alpha_are_checked(margin: float, alpha: float, message: str) -> None:
    for test in (noninferiority, equivalence):
        with pytest.raises(ServeEvalError, match=message):
            test(_right_or_wrong(1, 1, 10), margin, alpha)
    with pytest.raises(ServeEvalError, match="alpha"):
        bounds(_right_or_wrong(1, 1, 10), 1.0)


def test_inflation_moves_the_bounds_away_from_the_mean_and_weakens_the_proof() -> None:
    pairs = _right_or_wrong(10, 8, 1319)
    plain, wide = bounds(pairs, 0.05), bounds(pairs, 0.05, 2.0)
    mean = -2 / 1319
    assert wide.lower - mean == pytest.approx(2.0 * (plain.lower - mean))
    assert wide.upper - mean == pytest.approx(2.0 * (plain.upper - mean))
    assert noninferiority(pairs, 0.01, 0.05).p < noninferiority(pairs, 0.01, 0.05, 2.0).p < 0.5
