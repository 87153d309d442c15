"""Test pairs of scores: their t-test and the bounds of their drop."""

import math
from dataclasses import replace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.bounds import BoundsMethod, bounds, equivalence, noninferiority
from serve_eval.stats.paired_t import PairedT, paired_t
from serve_eval.stats.pairs import pair

NAN = math.nan
ACCURACY = {"lo": 0.0, "hi": 1.0, "higher_is_better": True}


def test_right_or_wrong_answers_of_one_run_are_counted():
    pairs = pair([1, 1, 0, 0, 1], [1, 0, 1, 0, 0], **ACCURACY)
    assert pairs.differences.tolist() == [0, -1, 1, 0, -1]
    assert (pairs.down, pairs.up, pairs.binary, pairs.missing, pairs.n) == (2, 1, True, 0, 5)


def test_a_lower_error_rate_counts_as_better():
    pairs = pair([0.1, 0.5], [0.3, 0.2], lo=0.0, hi=math.inf, higher_is_better=False)
    assert pairs.differences.tolist() == pytest.approx([-0.2, 0.3])


def test_several_runs_are_averaged_and_no_longer_binary():
    pairs = pair([[1, 1], [1, 0], [1, 0]], [1, 1], **ACCURACY)
    assert pairs.differences.tolist() == pytest.approx([0, 2 / 3])
    assert not pairs.binary
    assert (pairs.down, pairs.up, pairs.reference_runs, pairs.candidate_runs) == (0, 0, 3, 1)


def test_a_missing_candidate_score_leaves_the_rest_of_the_range_open():
    pairs = pair([1, 0, 1, 1], [NAN, NAN, 1, 0], **ACCURACY)
    assert pairs.worst.tolist() == [-1, 0, 0, -1]
    assert pairs.best.tolist() == [0, 1, 0, -1]
    assert pairs.missing == 2
    assert pairs.differences.tolist() == [0, -1]
    assert pairs.down == 1


@pytest.mark.parametrize(
    ("reference", "candidate", "higher_is_better", "open_range"),
    [
        ([NAN, 1], [1, 1], True, (0, 1)),
        ([1, 1], [[NAN, 1], [1, 1]], True, (-0.5, 0)),
        ([0.25, 0.5], [NAN, 0.5], False, (-0.75, 0.25)),
    ],
    ids=["in the reference", "in one of several runs", "where lower is better"],
)
def test_a_missing_score_leaves_the_range_open(reference, candidate, higher_is_better, open_range):
    pairs = pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=higher_is_better)
    assert (pairs.worst[0], pairs.best[0]) == open_range


def test_a_metric_without_a_range_leaves_everything_open():
    pairs = pair([2.0, 3.0], [NAN, 3.0], lo=-math.inf, hi=math.inf, higher_is_better=True)
    assert (pairs.worst[0], pairs.best[0]) == (-math.inf, math.inf)


def test_equal_weights_are_no_weights():
    assert pair([1, 0], [1, 1], **ACCURACY, weights=[3, 3]).binary
    weighted = pair([1, 0], [1, 1], **ACCURACY, weights=[3, 1])
    assert not weighted.binary
    assert weighted.weights.tolist() == [0.75, 0.25]


def test_cluster_keys_become_numbers_and_clusters_are_the_independent_units():
    pairs = pair([1, 0, 1], [1, 1, 1], **ACCURACY, clusters=["b", "a", "b"])
    assert pairs.clusters.tolist() == [0, 1, 0]
    assert pairs.units == 2
    assert not pairs.binary


def test_a_prompt_without_weight_is_no_unit():
    assert pair([1, 0, 1], [1, 1, 1], **ACCURACY, weights=[1, 1, 0]).units == 2


SCORES = st.sampled_from([0.0, 0.25, 1.0, NAN])


@given(st.lists(st.tuples(SCORES, SCORES), min_size=1), st.booleans(), st.data())
def test_whatever_the_missing_answers_were_the_difference_lies_between_worst_and_best(
    rows, better, data
):
    rows.append((1.0, 1.0))
    known = [tuple(s if s == s else data.draw(st.floats(0, 1)) for s in row) for row in rows]
    open_pairs = pair(
        [r for r, _ in rows], [c for _, c in rows], lo=0.0, hi=1.0, higher_is_better=better
    )
    full = pair(
        [r for r, _ in known], [c for _, c in known], lo=0.0, hi=1.0, higher_is_better=better
    )
    assert (open_pairs.worst <= full.differences).all()
    assert (full.differences <= open_pairs.best).all()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            {"reference_runs": [], "candidate_runs": []},
            "reference has no scores",
            "at least one prompt",
        ),
        (
            {"reference_runs": [1.0], "candidate_runs": []},
            "candidate has no scores",
            "at least one prompt",
        ),
        (
            {"reference_runs": [1.0, 0.0]},
            "2 reference scores cannot be paired with 1",
            "same order",
        ),
        ({"candidate_runs": [math.inf]}, "candidate are infinite", "unit"),
        ({"candidate_runs": [71.0]}, r"outside 0\.\.1; the first is 71", "points to 100"),
        ({"reference_runs": [-0.1]}, "reference are infinite or outside", "unit"),
        ({"candidate_runs": [NAN]}, "none of the 1 prompts has a score on both sides", "failures"),
        ({"candidate_runs": [[1.0], [1.0, 0.0]]}, "different numbers of prompts", "each run"),
        ({"lo": 1.0}, r"range 1\.0\.\.1\.0 is empty", "lo < hi"),
        ({"hi": NAN}, "is empty", "lo < hi"),
        ({"weights": [1.0, 2.0]}, "2 weights do not fit 1 prompts", "exactly one weight"),
        ({"weights": [0.0]}, "sum above 0", "size of a prompt"),
        ({"weights": [-1.0]}, "not negative", "size of a prompt"),
        ({"weights": [NAN]}, "finite", "size of a prompt"),
        ({"weights": [math.inf]}, "finite", "size of a prompt"),
        ({"clusters": ["a", "b"]}, "2 cluster keys do not fit 1 prompts", "one key"),
    ],
)
def test_scores_that_cannot_be_paired_are_refused_with_what_to_do(arguments, message, hint):
    given_arguments = {"reference_runs": [1.0], "candidate_runs": [0.0], **ACCURACY} | arguments
    with pytest.raises(ServeEvalError, match=message) as caught:
        pair(**given_arguments)
    assert hint in caught.value.hint


def test_averages_of_equal_scores_differ_by_nothing():
    scores = numpy.random.default_rng(0).random(1000)
    pairs = pair([scores] * 3, scores, lo=-math.inf, hi=math.inf, higher_is_better=True)
    assert not pairs.differences.any()


# 24 ROUGE differences in points; expected values by scipy's ttest_rel, by definition and by
# statsmodels.
DIFFERENCES = [-0.73, -1.76, -8.75, -2.82, -1.35, -0.86, -5.79, -2.63, -4.14, -3.63, 1.98, -3.62]
DIFFERENCES += [-1.3, 1.45, -2.95, -1.54, -0.87, -1.01, -4.88, -0.97, 2.88, -5.84, 1.38, -0.84]
CLUSTERS = numpy.repeat(numpy.arange(6), 4)


def test_the_plain_case_is_the_paired_t_test():
    test = paired_t(DIFFERENCES)
    assert (test.mean, test.se) == pytest.approx(
        (-2.0245833333333336, 0.5492488214042972), abs=1e-9
    )
    assert test.df == 23
    assert test.p == pytest.approx(0.0006112006973322913, abs=1e-9)


def test_weights_follow_the_definition():
    test = paired_t(DIFFERENCES, [2.0] * 8 + [1.0] * 16)
    assert (test.mean, test.se) == pytest.approx((-2.29, 0.5957374061322802), abs=1e-9)
    assert test.p == pytest.approx(0.00041406516219435026, abs=1e-9)


def test_clusters_give_the_standard_error_of_miller_times_the_small_sample_factor():
    test = paired_t(DIFFERENCES, clusters=CLUSTERS)
    assert test.se * math.sqrt(5 / 6) == pytest.approx(0.39566988584527724, abs=1e-9)
    assert test.df == 5


def _p_of_two_one_sided_tests(test, margin):
    both = (test, replace(test, mean=-test.mean))
    return max(side.noninferiority_p(margin) for side in both)


def test_margins_in_both_directions_equal_two_one_sided_tests():
    p = _p_of_two_one_sided_tests(paired_t(DIFFERENCES), 2.571)
    assert p == pytest.approx(0.16508211427211825, abs=1e-9)


def test_the_shared_vectors_hold_to_their_tolerance(vectors):
    for vector in vectors("paired_t"):
        inputs, expected = vector["inputs"], vector["expected"]
        differences = numpy.subtract(inputs["test"], inputs["reference"])
        test = paired_t(differences, inputs.get("weights"))
        for name, value in expected.items():
            assert getattr(test, name) == pytest.approx(value, abs=vector["tolerance"]), vector[
                "id"
            ]
    for vector in vectors("clustered_se"):
        codes = numpy.array(vector["inputs"]["cluster"])
        groups = len(set(codes.tolist()))
        test = paired_t(vector["inputs"]["differences"], clusters=codes)
        without_factor = test.se * math.sqrt((groups - 1) / groups)
        assert without_factor == pytest.approx(vector["expected"]["se"], abs=vector["tolerance"])
    for vector in vectors("tost"):
        test = paired_t(numpy.subtract(vector["inputs"]["test"], vector["inputs"]["reference"]))
        p = _p_of_two_one_sided_tests(test, vector["inputs"]["margin"])
        assert p == pytest.approx(vector["expected"]["p"], abs=vector["tolerance"])


def test_a_bound_excludes_what_its_test_rejects():
    test = paired_t(DIFFERENCES)
    lower, upper = test.bounds(0.05)
    assert test.noninferiority_p(-lower) == pytest.approx(0.05)
    assert upper - test.mean == pytest.approx(test.mean - lower)


@pytest.mark.parametrize(("value", "p"), [(-0.1, 0.0), (0.0, 1.0), (0.1, 1.0)])
def test_differences_that_are_all_equal_need_no_spread(value, p):
    test = paired_t([value] * 7)
    assert (test.mean, test.se, test.p) == (value, 0.0, p)
    assert test.bounds(0.05) == (value, value)
    assert paired_t([value] * 7, [0.1, 0.7, 0.3, 1, 1, 1, 1]).p == p


def test_clusters_that_are_all_equal_need_no_spread_either():
    assert paired_t([-0.1, -0.3, -0.1, -0.3], clusters=numpy.array([0, 0, 1, 1])).se == 0.0


def test_a_prompt_without_weight_is_no_evidence():
    with_it, without = paired_t([-1, 0, 2, 5], [1, 1, 1, 0]), paired_t([-1, 0, 2])
    assert (with_it.mean, with_it.se, with_it.df) == pytest.approx(
        (without.mean, without.se, without.df)
    )


@given(st.lists(st.floats(-1, 1), min_size=2), st.randoms())
def test_the_order_of_the_samples_does_not_matter(values, random):
    shuffled = random.sample(values, len(values))
    one, other = paired_t(values), paired_t(shuffled)
    assert (one.mean, one.df) == pytest.approx((other.mean, other.df), abs=1e-12)
    assert one.se == pytest.approx(other.se, abs=1e-9)


@given(st.lists(st.floats(-1, 1), min_size=3), st.floats(0, 1))
def test_a_gain_on_every_prompt_never_strengthens_the_proof_of_a_drop(values, gain):
    before, after = paired_t(values), paired_t([value + gain for value in values])
    if before.se > 1e-6:
        assert after.p >= before.p - 1e-9
        assert after.noninferiority_p(0.1) <= before.noninferiority_p(0.1) + 1e-9


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (([],), "the differences must be a list of one or more numbers", "at least one sample"),
        (([1.0],), "cannot be estimated from 1 independent pairs", "at least two"),
        (([1.0, math.nan],), "position 1 is nan", "NaN"),
        (([math.inf, 1.0],), "position 0 is inf", "NaN"),
        (([1.0, 2.0], [1.0, 0.0]), "from 1 independent pairs", "at least two"),
        (([1.0, 2.0], None, numpy.array([0, 0])), "from 1 independent pairs", "at least two"),
    ],
)
def test_what_has_no_spread_is_refused(arguments, message, hint):
    with pytest.raises(ServeEvalError, match=message) as caught:
        paired_t(*arguments)
    assert hint in caught.value.hint


def test_bounds_and_margins_check_their_parameters():
    test = PairedT(mean=0.0, se=0.1, df=9)
    with pytest.raises(ServeEvalError, match="alpha"):
        test.bounds(1.0)
    with pytest.raises(ServeEvalError, match="margin"):
        test.noninferiority_p(-1.0)


def _right_or_wrong(down, up, n, missing=0):
    """Return pairs with the given counts; the reference has the missing ones right."""
    same = n - down - up - missing
    reference = [1.0] * down + [0.0] * up + [1.0] * (same + missing)
    candidate = [0.0] * down + [1.0] * up + [1.0] * same + [NAN] * missing
    return pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)


def _texts(differences, **options):
    shift = numpy.asarray(differences, dtype=float)
    lo, hi = options.pop("range", (0.0, 1.0))
    return pair(
        numpy.full(len(shift), 0.5), 0.5 + shift, lo=lo, hi=hi, higher_is_better=True, **options
    )


def test_right_or_wrong_answers_take_the_score_bounds():
    result = bounds(_right_or_wrong(10, 8, 1319), 0.05)
    assert result.method is BoundsMethod.TANGO
    assert (result.lower, result.upper) == pytest.approx(
        (-0.007270760001112364, 0.004049079039039326), abs=3e-6
    )


def test_scores_within_a_range_take_the_score_bounds_for_any_values():
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


def test_many_changes_without_a_range_take_the_t_bounds():
    differences = numpy.random.default_rng(1).normal(-0.01, 0.1, 200)
    pairs = _texts(differences, range=(-math.inf, math.inf))
    result = bounds(pairs, 0.05)
    assert result.method is BoundsMethod.T
    assert (result.lower, result.upper) == pytest.approx(paired_t(differences).bounds(0.05))
    assert noninferiority(pairs, 0.05, 0.05).p == pytest.approx(
        paired_t(differences).noninferiority_p(0.05)
    )


def test_few_changed_texts_prove_less_than_the_t_bounds_say():
    differences = numpy.zeros(500)
    differences[:10] = -0.2
    pairs = _texts(differences)
    result = bounds(pairs, 0.05)
    assert -1.0 <= result.lower < paired_t(differences).bounds(0.05)[0] < -0.004


def test_one_answer_of_half_a_point_moves_the_bound_by_less_than_one_answer():
    """Use 1319 prompts, 10 lost and 10 won, as GSM8K scores them: the mean of two filters."""
    reference, candidate = numpy.ones(1319), numpy.ones(1319)
    candidate[:10] = reference[10:20] = 0.0
    plain = pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)
    candidate[20] = 0.5
    graded = pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)
    assert noninferiority(plain, 0.01, 0.05).holds
    assert noninferiority(graded, 0.01, 0.05).holds
    assert bounds(graded, 0.05).lower == pytest.approx(bounds(plain, 0.05).lower, abs=1 / 1319)


def test_one_pair_of_texts_excludes_what_one_right_or_wrong_pair_does():
    assert bounds(_texts([0.0]), 0.05).lower == pytest.approx(
        bounds(_right_or_wrong(0, 0, 1), 0.05).lower, abs=1e-9
    )


def test_clusters_and_weights_widen_the_bounds():
    differences = numpy.zeros(400)
    plain = bounds(_texts(differences), 0.05).lower
    grouped = bounds(_texts(differences, clusters=[i // 4 for i in range(400)]), 0.05).lower
    weighted = bounds(_texts(differences, weights=[1.0 + i % 3 for i in range(400)]), 0.05).lower
    assert grouped < plain
    assert weighted < plain


def test_points_and_proportions_have_the_same_bounds():
    differences = numpy.zeros(100)
    differences[:5] = -0.25
    points = pair(
        numpy.full(100, 50.0), 50.0 + 100 * differences, lo=0.0, hi=100.0, higher_is_better=True
    )
    assert bounds(points, 0.05).lower == pytest.approx(
        100 * bounds(_texts(differences), 0.05).lower
    )


def test_few_changes_in_a_metric_without_a_range_say_nothing():
    pairs = _texts([0.0] * 50, range=(-math.inf, math.inf))
    result = bounds(pairs, 0.05)
    assert (result.method, result.lower, result.upper) == (BoundsMethod.NONE, -math.inf, math.inf)
    assert noninferiority(pairs, 0.1, 0.05) == equivalence(pairs, 0.1, 0.05)
    assert not noninferiority(pairs, 0.1, 0.05).holds


def test_missing_answers_lower_the_lower_bound_and_raise_the_upper_one():
    full, open_pairs = (
        bounds(_right_or_wrong(10, 8, 1000), 0.05),
        bounds(_right_or_wrong(10, 8, 1000, 20), 0.05),
    )
    assert open_pairs.lower < full.lower == pytest.approx(open_pairs.lower_at_best)
    assert open_pairs.lower == bounds(_right_or_wrong(30, 8, 1000), 0.05).lower


def test_a_small_margin_needs_more_prompts_than_a_large_one():
    pairs = _right_or_wrong(10, 8, 1319)
    assert noninferiority(pairs, 0.02, 0.05).holds
    assert noninferiority(pairs, 0.02, 0.05).p == pytest.approx(2.000865928382232e-05, abs=3e-6)
    assert not noninferiority(pairs, 0.005, 0.05).holds


def test_a_gain_is_non_inferior_but_not_equivalent():
    pairs = _right_or_wrong(5, 60, 1000)
    assert noninferiority(pairs, 0.02, 0.05).holds
    assert not equivalence(pairs, 0.02, 0.05).holds
    assert equivalence(pairs, 0.1, 0.05).holds
    assert equivalence(pairs, 0.1, 0.05).p <= 0.05 < equivalence(pairs, 0.02, 0.05).p


@pytest.mark.parametrize(
    ("margin", "alpha", "message"), [(-0.1, 0.05, "margin"), (0.1, 0.0, "alpha")]
)
def test_margin_and_alpha_are_checked(margin, alpha, message):
    for test in (noninferiority, equivalence):
        with pytest.raises(ServeEvalError, match=message):
            test(_right_or_wrong(1, 1, 10), margin, alpha)
    with pytest.raises(ServeEvalError, match="alpha"):
        bounds(_right_or_wrong(1, 1, 10), 1.0)


def test_inflation_moves_the_bounds_away_from_the_mean_and_weakens_the_proof():
    pairs = _right_or_wrong(10, 8, 1319)
    plain, wide = bounds(pairs, 0.05), bounds(pairs, 0.05, 2.0)
    mean = -2 / 1319
    assert wide.lower - mean == pytest.approx(2.0 * (plain.lower - mean))
    assert wide.upper - mean == pytest.approx(2.0 * (plain.upper - mean))
    assert noninferiority(pairs, 0.01, 0.05).p < noninferiority(pairs, 0.01, 0.05, 2.0).p < 0.5
