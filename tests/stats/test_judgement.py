"""Test judgements of a value, also with anchors."""

import math
import random
import time

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.drop import Method, drop_test
from serve_eval.stats.finding import PairedFinding, finding
from serve_eval.stats.judgement import Reason, anchor_pairs, anchor_test, judge
from serve_eval.stats.pairs import pair
from serve_eval.stats.sign_tests import mcnemar

NAN = math.nan
RANK = {
    PairedFinding.FAIL: 0,
    PairedFinding.INCONCLUSIVE: 1,
    PairedFinding.SMALL_DROP: 1,
    PairedFinding.PASS: 2,
}


def _answers(down, up, same, missing=0):
    reference = [1.0] * down + [0.0] * up + [1.0] * (same + missing)
    candidate = [0.0] * down + [1.0] * up + [1.0] * same + [NAN] * missing
    return pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)


def _texts(differences, **options):
    shift = numpy.asarray(differences, dtype=float)
    lo, hi = options.pop("range", (-2.0, 2.0))
    return pair(numpy.zeros(len(shift)), shift, lo=lo, hi=hi, higher_is_better=True, **options)


@pytest.mark.parametrize(
    ("p", "lower", "expected"),
    [
        (0.2, -0.01, PairedFinding.PASS),
        (0.05, -0.01, PairedFinding.SMALL_DROP),
        (0.05, -0.02, PairedFinding.FAIL),
        (0.051, -0.02, PairedFinding.INCONCLUSIVE),
        ((0.06, 0.2), (-0.01, 0.0), PairedFinding.PASS),
        ((0.04, 0.2), (-0.01, 0.0), PairedFinding.INCONCLUSIVE),
        ((0.01, 0.02), (-0.03, -0.02), PairedFinding.FAIL),
        ((0.01, 0.02), (-0.03, -0.01), PairedFinding.INCONCLUSIVE),
        ((0.01, 0.02), (-0.01, 0.0), PairedFinding.SMALL_DROP),
        ((0.2, 0.3), (-0.03, -0.02), PairedFinding.INCONCLUSIVE),
    ],
)
def test_a_finding_answers_two_questions(p, lower, expected):
    assert finding(p, 0.05, lower, 0.02) is expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.2, 0.05, 0.0, 0.1), "p must be a probability"),
        ((NAN, 0.05, 0.0, 0.1), "p must be a probability"),
        (((0.3, 0.2), 0.05, 0.0, 0.1), "p must be a probability"),
        ((0.2, 1.0, 0.0, 0.1), "alpha"),
        ((0.2, 0.05, NAN, 0.1), "lower bound must be a number"),
        ((0.2, 0.05, (0.1, 0.0), 0.1), "lower bound must be a number"),
        ((0.2, 0.05, 0.0, -0.1), "margin"),
    ],
)
def test_a_finding_refuses_what_is_no_evidence(arguments, message):
    with pytest.raises(ServeEvalError, match=message) as caught:
        finding(*arguments)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("down", "up", "expected"),
    [
        (20, 20, PairedFinding.PASS),
        (40, 20, PairedFinding.SMALL_DROP),
        (120, 20, PairedFinding.FAIL),
        (0, 0, PairedFinding.PASS),
    ],
)
def test_a_task_of_4096_right_or_wrong_answers(down, up, expected):
    result = judge(_answers(down, up, 4096 - down - up), margin=0.01817324)
    assert result.finding is expected
    assert result.reasons == ()
    assert result.test.method is Method.MCNEMAR_MIDP
    assert result.test.p == mcnemar(down, up).p_mid
    assert result.test.p_exact == mcnemar(down, up).p_exact
    assert result.noninferior.holds is (expected is not PairedFinding.FAIL)


def test_a_small_noisy_task_is_inconclusive():
    result = judge(_answers(4, 3, 25), margin=0.05)
    assert (result.finding, result.reasons) == (
        PairedFinding.INCONCLUSIVE,
        (Reason.MARGIN_NOT_EXCLUDED,),
    )


def test_one_prompt_is_too_few_and_so_is_one_cluster():
    one = judge(_answers(1, 0, 0), margin=0.1)
    assert (one.finding, one.reasons, one.test.p) == (
        PairedFinding.INCONCLUSIVE,
        (Reason.TOO_FEW_PAIRS,),
        None,
    )
    cluster = judge(_texts([0.1, -0.2], clusters=["a", "a"]), margin=0.1)
    assert (cluster.reasons, cluster.test.p) == ((Reason.TOO_FEW_PAIRS,), None)


@pytest.mark.parametrize("method", ["exchange", "signflip", "permutation"])
def test_a_missing_answer_counts_as_worst_for_the_upper_end_of_p_and_as_best_for_the_lower(
    method,
):
    reference = numpy.ones((3, 40))
    answers = [numpy.ones(40) for _ in range(3)]
    for scores, missing in zip(answers, (1.0, 0.0, NAN), strict=True):
        scores[:3], scores[3:7] = 0.0, missing
    best, worst, open_ends = (
        drop_test(pair(reference, scores, lo=0.0, hi=1.0, higher_is_better=True), method)
        for scores in answers
    )
    assert worst.p < best.p
    assert open_ends.p_range == pytest.approx((worst.p, best.p))
    assert open_ends.p == pytest.approx(best.p)


@pytest.mark.parametrize(("prompts", "found"), [(2, False), (9, False), (10, True)])
def test_a_handful_of_prompts_that_all_dropped_proves_nothing(prompts, found):
    """Two prompts that dropped alike once gave p = 0 and FAIL."""
    runs = pair(
        numpy.ones((3, prompts)), numpy.zeros(prompts), lo=0.0, hi=1.0, higher_is_better=True
    )
    result = judge(runs, margin=0.1)
    assert (result.finding is PairedFinding.FAIL) is found
    assert (Reason.TOO_FEW_PAIRS in result.reasons) is not found


@pytest.mark.parametrize(("clusters", "enough"), [(9, False), (10, True)])
def test_fewer_than_ten_clusters_prove_nothing(clusters, enough):
    pairs = _texts(
        [-0.5 - i / 1000 for i in range(100)], clusters=[i % clusters for i in range(100)]
    )
    result = judge(pairs, margin=0.1)
    assert (result.finding is PairedFinding.FAIL) is enough
    assert (Reason.FEW_CLUSTERS in result.reasons) is not enough


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-0.5, PairedFinding.FAIL), (-0.05, PairedFinding.SMALL_DROP), (0.0, PairedFinding.PASS)],
)
def test_differences_that_are_all_equal_are_judged_without_a_spread(value, expected):
    assert judge(_texts([value] * 1000), margin=0.1).finding is expected


def test_few_changes_in_a_metric_without_a_range_are_inconclusive():
    result = judge(_texts([0.0] * 50, range=(-math.inf, math.inf)), margin=0.1)
    assert (result.finding, result.reasons) == (PairedFinding.INCONCLUSIVE, (Reason.FEW_CHANGES,))


def test_a_margin_of_zero_is_never_excluded_by_identical_answers():
    assert judge(_answers(0, 0, 100), margin=0.0).finding is PairedFinding.INCONCLUSIVE


def test_missing_answers_that_could_change_the_finding_make_it_inconclusive():
    result = judge(_answers(25, 20, 1945, missing=10), margin=0.05)
    assert result.finding is PairedFinding.INCONCLUSIVE
    assert result.reasons == (Reason.MISSING_RESULTS,)
    assert result.test.p_range == (mcnemar(35, 20).p_mid, mcnemar(25, 20).p_mid)
    assert result.test.p == mcnemar(25, 20).p_mid


def test_missing_answers_that_change_nothing_leave_the_finding():
    assert judge(_answers(10, 20, 1965, missing=5), margin=0.05).finding is PairedFinding.PASS
    assert judge(_answers(300, 20, 1660, missing=20), margin=0.05).finding is PairedFinding.FAIL


def test_too_many_missing_answers_are_inconclusive_unless_the_candidate_fails_anyway():
    result = judge(_answers(0, 100, 700, missing=50), margin=0.1)
    assert (result.finding, result.reasons) == (
        PairedFinding.INCONCLUSIVE,
        (Reason.TOO_MANY_MISSING,),
    )
    assert (
        judge(_answers(0, 100, 700, missing=50), margin=0.1, max_missing=0.1).finding
        is PairedFinding.PASS
    )
    assert judge(_answers(400, 0, 400, missing=50), margin=0.1).finding is PairedFinding.FAIL


def test_a_missing_answer_of_a_metric_without_a_range_is_inconclusive():
    pairs = _texts([*([-0.5, 0.4] * 500), NAN], range=(-math.inf, math.inf))
    result = judge(pairs, margin=0.1)
    assert (result.finding, result.reasons) == (
        PairedFinding.INCONCLUSIVE,
        (Reason.MISSING_RESULTS,),
    )
    assert result.test.p_range == (0.0, 1.0)


def test_texts_take_the_permutation_test_and_other_tests_on_request():
    pairs = _texts(numpy.random.default_rng(2).normal(-0.1, 0.5, 300))
    chosen, t, flips = drop_test(pairs), drop_test(pairs, "paired_t"), drop_test(pairs, "signflip")
    assert (chosen.method, chosen.df) == (Method.PERMUTATION, None)
    assert (t.method, t.df, t.p_exact) == (Method.PAIRED_T, 299, None)
    assert (flips.method, flips.df) == (Method.SIGN_FLIP, None)
    assert chosen.p == flips.p == pytest.approx(t.p, abs=0.01)
    assert flips.se == t.se
    exact = drop_test(_answers(12, 2, 50), "mcnemar_exact")
    assert exact.p == exact.p_exact == mcnemar(12, 2).p_exact


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_the_finding_does_not_depend_on_the_unit(scale):
    values = numpy.random.default_rng(7).normal(-0.02, 0.1, 400).clip(-1, 1)
    pairs = _texts(scale * values, range=(-scale, scale))
    assert judge(pairs, margin=0.05 * scale).finding is PairedFinding.SMALL_DROP


@given(
    st.integers(0, 40),
    st.integers(0, 40),
    st.integers(1, 400),
    st.integers(0, 8),
    st.sampled_from([0.02, 0.1]),
)
def test_one_more_right_answer_never_makes_the_finding_worse(down, up, same, missing, margin):
    before = RANK[judge(_answers(down, up, same, missing), margin=margin, max_missing=1.0).finding]
    if down:
        assert (
            RANK[
                judge(
                    _answers(down - 1, up, same + 1, missing), margin=margin, max_missing=1.0
                ).finding
            ]
            >= before
        )
    assert (
        RANK[
            judge(_answers(down, up + 1, same - 1, missing), margin=margin, max_missing=1.0).finding
        ]
        >= before
    )


VALUES = st.lists(
    st.sampled_from([-1.0, -0.4, 0.0, 0.0, 0.0, 0.3, 1.0, NAN]), min_size=2, max_size=120
)


@given(VALUES, st.integers(), st.booleans())
def test_the_order_of_the_samples_does_not_matter(values, seed, weighted):
    rows = [(value, index % 3 + 1, index % 12) for index, value in enumerate([*values, 0.0])]
    results = []
    for order in (rows, random.Random(seed).sample(rows, len(rows))):
        weights = [float(weight) for _, weight, _ in order] if weighted else None
        pairs = _texts(
            [value for value, _, _ in order], weights=weights, clusters=[key for _, _, key in order]
        )
        results.append(judge(pairs, margin=0.1, max_missing=0.5))
    one, other = results
    assert (one.finding, one.reasons) == (other.finding, other.reasons)
    assert one.test.p == pytest.approx(other.test.p, abs=1e-9)
    assert one.bounds.lower == pytest.approx(other.bounds.lower, abs=1e-9)


def test_judging_a_hundred_thousand_pairs_takes_less_than_two_seconds():
    random_ = numpy.random.default_rng(0)
    reference = (random_.random(100_000) < 0.7).astype(float)
    candidate = numpy.where(random_.random(100_000) < 0.02, 1 - reference, reference)
    judge(_answers(3, 2, 40), margin=0.1)  # loads scipy
    start = time.process_time()
    judge(pair(reference, candidate, lo=0, hi=1, higher_is_better=True), margin=0.01)
    rouge = random_.random(100_000)
    judge(pair(rouge, rouge**1.01, lo=0, hi=1, higher_is_better=True), margin=0.01)
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
    ("pairs", "options", "message", "hint"),
    [
        (
            _answers(1, 1, 8),
            {"method": "wilcoxon"},
            "'wilcoxon' is not a paired test",
            "mcnemar_midp",
        ),
        (
            _texts([0.5, 0.2]),
            {"method": "mcnemar_midp"},
            "McNemar's test needs right/wrong",
            "method auto",
        ),
        (
            _texts([0.5, 0.2]),
            {"method": "mcnemar_exact"},
            "McNemar's test needs right/wrong",
            "method auto",
        ),
        (_texts([0.5, NAN], weights=[0, 1]), {}, "no complete pair has a weight", "weights"),
        (_answers(1, 1, 8), {"alpha": 0.0}, "alpha", "0.05"),
        (_answers(1, 1, 8), {"margin": -1.0}, "margin", "without a sign"),
        (_answers(1, 1, 8), {"margin": NAN}, "margin", "without a sign"),
        (_answers(1, 1, 8), {"max_missing": 2.0}, "max_missing must be a share", "0.02"),
    ],
)
def test_options_that_do_not_fit_are_refused(pairs, options, message, hint):
    with pytest.raises(ServeEvalError, match=message) as caught:
        judge(pairs, **({"margin": 0.1} | options))
    assert hint in caught.value.hint


def _pairs(reference, candidate, *, better=True):
    return pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=better)


def _runs(patterns):
    """Return the given number of prompts of each pattern.

    The digits of a pattern are the scores of three reference runs and of the candidate.
    """
    columns = [
        [NAN if c == "-" else float(c) for c in pattern]
        for pattern, count in patterns.items()
        for _ in range(count)
    ]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return _pairs(rows[:3], rows[3])


def test_anchors_are_the_prompts_that_all_runs_but_the_last_had_right():
    test = anchor_test(_runs({"1111": 20, "1110": 6, "1101": 2, "1001": 5, "0110": 5, "0000": 30}))
    assert (test.anchors, test.reference_lost, test.candidate_lost) == (28, 2, 6)
    assert test.test.p == mcnemar(6, 2).p_mid


def test_the_last_reference_run_has_no_part_in_the_choice():
    """Otherwise its answers would be right on all anchors, and any candidate would look worse."""
    random = numpy.random.default_rng(1)
    chances = random.random((400, 150))
    alarms = 0
    for chance in chances:
        runs = (random.random((4, 150)) < chance).astype(float)
        test = anchor_test(pair(runs[:3], runs[3], lo=0.0, hi=1.0, higher_is_better=True))
        alarms += test.test.p <= 0.05
    assert alarms <= 32  # .05 of 400 is 20; more than 32 has a chance of .003


def test_a_missing_answer_is_lost_for_one_end_and_kept_for_the_other():
    test = anchor_test(_runs({"1111": 30, "1110": 4, "111-": 3}))
    assert test.test.p_range == (mcnemar(4, 0).p_mid, mcnemar(7, 0).p_mid)[::-1]
    assert test.candidate_lost == 4


@pytest.mark.parametrize(
    "pairs",
    [
        _pairs([[1.0] * 50], [0.0] * 50),
        _runs({"1110": 9, "0111": 80}),
        pair(
            numpy.zeros((3, 50)), numpy.zeros(50), lo=-math.inf, hi=math.inf, higher_is_better=True
        ),
    ],
    ids=["one reference run", "few anchors", "no best score"],
)
def test_without_anchors_there_is_no_test(pairs):
    assert anchor_pairs(pairs) is None
    assert judge(pairs, margin=0.1).anchors is None


def test_where_lower_is_better_the_lowest_score_is_right():
    low = [[0.0] * 40, [0.0] * 40]
    test = anchor_test(_pairs(low, [1.0] * 6 + [0.0] * 34, better=False))
    assert (test.anchors, test.candidate_lost) == (40, 6)
    assert test.test.p == mcnemar(6, 0).p_mid


def test_anchors_keep_the_weights_of_their_prompts():
    """Of 40 anchors four are lost that count three times."""
    found = pair(
        [[0.0] * 5 + [1.0] * 40] * 2,
        [0.0] * 9 + [1.0] * 36,
        lo=0.0,
        hi=1.0,
        higher_is_better=True,
        weights=[3.0] * 9 + [1.0] * 36,
    )
    test = anchor_test(found)
    assert test.test.mean == pytest.approx(-12.0 / 48.0)


def test_damage_of_stable_prompts_shows_among_the_anchors_with_a_fraction_of_the_noise():
    random = numpy.random.default_rng(5)
    chance = numpy.where(random.random(1500) < 0.26, random.random(1500), 1.0)
    runs = (random.random((11, 1500)) < chance).astype(float)
    runs[10] = numpy.where(random.random(1500) < 0.02, 0.0, runs[10])
    told = judge(pair(runs[:10], runs[10], lo=0.0, hi=1.0, higher_is_better=True), margin=0.03)
    assert told.anchors.test.p < told.test.p / 10
