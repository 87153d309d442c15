"""Test repeated answers: pass@k, own noise, and drops on the same questions."""

from itertools import combinations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from serve_eval.errors import ServeEvalError
from serve_eval.stats import drop
from serve_eval.stats.bounds import BoundsMethod, bounds, equivalence, noninferiority
from serve_eval.stats.distances import farther_in_each, farther_than_own, rank_distances
from serve_eval.stats.drop import Method, drop_test, equal_accuracy_test
from serve_eval.stats.multiplicity import acceptance_region
from serve_eval.stats.paired_t import average_largest_gain
from serve_eval.stats.pairs import pair, pair_repeats
from serve_eval.stats.permutation import sign_flip_test
from serve_eval.stats.repeats import Majority, majority, pass_at, standard_error
from serve_eval.stats.score_bounds import mean_score_lower_bound, score_bounds


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_all_draws_with_a_right_answer(n, data):
    counts = data.draw(st.lists(st.integers(0, n), min_size=1, max_size=4))
    k = data.draw(st.integers(1, n))
    shares = []
    for right in counts:
        draws = list(combinations([True] * right + [False] * (n - right), k))
        shares.append(sum(any(draw) for draw in draws) / len(draws))
    found = pass_at(counts, n, k)
    assert found.value == found.low == found.high == pytest.approx(sum(shares) / len(shares))


@pytest.mark.parametrize(
    ("right", "n", "k"), [([], 3, 1), ([1], 3, 0), ([1], 3, 4), ([4], 3, 1), ([-1], 3, 1)]
)
def test_what_has_no_pass_at_k_is_said(right, n, k):
    with pytest.raises(ServeEvalError, match=f"pass@{k} needs"):
        pass_at(right, n, k)


@pytest.mark.parametrize(
    ("votes", "score"),
    [
        ([("7", 1.0), ("8", 0.0), ("7", 1.0)], 1.0),
        ([("7", 1.0), ("8", 0.0), ("8", 0.0)], 0.0),
        ([("7", 1.0), ("8", 0.0)], 0.5),
        ([("7", 1.0), (None, 0.0), (None, 0.0)], 1.0),
        ([(None, 0.0), (None, 0.0)], 0.0),
        ([("7", 1.0), ("7", 0.5), ("8", 0.0)], 0.75),
    ],
)
def test_the_answer_with_the_most_votes_counts(votes, score):
    found = majority([votes])
    assert found.value == score


def test_prompts_count_alike_and_none_has_no_vote():
    tie = [("a", 1.0), ("b", 0.0)]
    assert majority([[("a", 1.0)], [("b", 0.0)]]) == Majority(value=0.5, prompts=2, tied=0)
    assert majority([tie, [("b", 0.0)], tie]) == Majority(value=1 / 3, prompts=3, tied=2)
    assert majority([]) is None
    with pytest.raises(ServeEvalError, match="without votes"):
        majority([[]])


@given(st.data())
def test_pass_at_k_lies_within_what_the_missing_answers_allow(data):
    n = data.draw(st.integers(1, 6))
    k = data.draw(st.integers(1, n))
    known = data.draw(st.lists(st.integers(0, n), min_size=1, max_size=6))
    right = [data.draw(st.integers(0, m)) for m in known]
    found = pass_at(right, n, k, known)
    assert found.low <= found.value <= found.high
    wrong = pass_at(right, n, k)
    best = pass_at([c + n - m for c, m in zip(right, known, strict=True)], n, k)
    assert (found.low, found.high) == pytest.approx((wrong.value, best.value))


def test_prompts_that_lack_answers_are_not_left_out():
    """60 easy prompts, and 11 answers of hard ones that never came: they lay outside before."""
    right, known = [4] * 30 + [1] * 30, [4] * 30 + [3] * 11 + [4] * 19
    found = pass_at(right, 4, 1, known)
    assert found.low < found.value < found.high
    assert (found.low, found.high) == pytest.approx((150 / 240, 161 / 240))
    complete = pass_at([*right[:30], *right[41:]], 4, 1).value
    assert complete > found.high


def test_the_standard_error_is_by_question():
    assert standard_error([0.5]) is None
    assert standard_error([0.0, 1.0, 0.0, 1.0]) == pytest.approx(0.5 / 3**0.5)


ROUNDS, PROMPTS = 120, 60


def _answer(rng, own, other, changed):
    """Return the distances of scores and of texts; a third of the prompts are undecided.

    The other endpoint answers a share of the prompts with other chances.
    """
    chances = numpy.where(rng.random(PROMPTS) < 0.3, rng.random(PROMPTS), 0.95)[:, numpy.newaxis]
    touched = rng.random((PROMPTS, 1)) < changed
    theirs = numpy.where(touched, 1.0 - chances, chances)
    scores = numpy.concatenate(
        [rng.random((PROMPTS, own)) < chances, rng.random((PROMPTS, other)) < theirs], axis=1
    ).astype(float)
    texts = 3.0 * scores + rng.integers(2, size=scores.shape)
    return [numpy.abs(one[:, :, None] - one[:, None, :]) for one in (scores, texts)]


@pytest.mark.parametrize(("own", "other"), [(2, 2), (4, 4), (3, 1)])
def test_alike_endpoints_are_accused_no_more_often_than_alpha_says(own, other):
    rng = numpy.random.default_rng(own)
    found = [
        farther_than_own([rank_distances(one) for one in _answer(rng, own, other, 0.0)], own).p
        for _ in range(ROUNDS)
    ]
    for alpha in (0.01, 0.05, 0.2):
        assert sum(p <= alpha for p in found) <= binom.ppf(0.999, ROUNDS, alpha)


def test_more_repeats_find_more():
    rng = numpy.random.default_rng(7)
    found = {
        times: sum(
            farther_than_own(_answer(rng, times, times, 0.15), times).p <= 0.01 for _ in range(40)
        )
        for times in (2, 6)
    }
    assert found[2] < found[6]
    assert found[6] >= 38


def test_repeats_of_one_prompt_are_no_further_prompts():
    """Six own answers that agree and six other ones that agree are one prompt that differs."""
    answers = numpy.array([0.0] * 6 + [1.0] * 6)
    one = numpy.abs(answers[:, None] - answers[None, :])[numpy.newaxis]
    assert farther_than_own([one], 6).p == pytest.approx(2 / 924, abs=0.002)
    assert farther_than_own([numpy.zeros_like(one)], 6).p == 1.0


def test_the_smallest_p_of_two_measures_is_corrected_for_both():
    rng = numpy.random.default_rng(3)
    scores, texts = _answer(rng, 3, 3, 0.3)
    both = farther_than_own([scores, texts], 3)
    assert min(both.each) <= both.p <= 2.2 * min(both.each) + 0.0002
    again = farther_than_own([scores, texts], 3)
    assert (again.p, again.each) == (both.p, both.each)


def test_the_p_over_groups_of_prompts_is_the_largest_and_each_is_that_of_its_sums():
    rng = numpy.random.default_rng(5)
    given = numpy.stack(_answer(rng, 2, 2, 0.3)[:1])
    count = given.shape[1]
    alone, pairs = list(range(count)), [place // 2 for place in range(count)]
    summed = given[:, ::2] + given[:, 1::2]
    ps = [farther_than_own(one, 2).p for one in (given, summed)]
    assert [farther_in_each(given, 2, [one]).p for one in (alone, pairs)] == pytest.approx(ps)
    assert farther_in_each(given, 2, [alone, pairs]).p == max(ps)


def test_ranks_keep_two_kinds_of_distances_as_far_apart_in_each_prompt():
    rng = numpy.random.default_rng(4)
    answers = (rng.random((20, 4)) < 0.5).astype(float)
    given = numpy.abs(answers[:, :, None] - answers[:, None, :])
    upper = numpy.triu_indices(4, 1)
    gaps = {
        round(float(ranks[given_one == 1.0].min() - ranks[given_one == 0.0].max()), 9)
        for ranks, given_one in zip(rank_distances(given)[:, *upper], given[:, *upper], strict=True)
        if 0.0 < given_one.sum() < 6.0
    }
    assert gaps == {0.5}


@pytest.mark.parametrize("own", [1, 3])
def test_too_few_answers_are_refused(own):
    with pytest.raises(ServeEvalError, match="show no noise"):
        farther_than_own(numpy.zeros((1, 5, 3, 3)), own)


REPLICATES = 200


def _draw(random, k, m, before, after):
    chances, now = numpy.asarray(before), numpy.asarray(after)
    sides = [(random.random((runs, len(p))) < p) * 1.0 for runs, p in ((k, chances), (m, now))]
    return pair(*sides, lo=0.0, hi=1.0, higher_is_better=True)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=60)
def test_every_answer_counts_alike(k, m, n, seed):
    random = numpy.random.default_rng(seed)
    reference, candidate = random.random((k, n)), random.random((m, n))
    found = pair_repeats(reference, candidate)
    assert found.shape[1:] == (min(k, m), n)
    assert found.mean(axis=(0, 1)) == pytest.approx(candidate.mean(axis=0) - reference.mean(axis=0))


def test_one_answer_a_side_has_the_bounds_of_the_pairs():
    pairs = _draw(numpy.random.default_rng(1), 1, 1, numpy.full(60, 0.8), numpy.full(60, 0.7))
    assert pairs.down is not None
    assert pairs.up is not None
    assert bounds(pairs, 0.05).lower == score_bounds(pairs.down, pairs.up, 60, 0.05)[0]


def test_equal_answers_exclude_a_smaller_drop_the_more_there_are():
    """N pairs of equal answers exclude z^2 / (N + z^2), whether by prompts or by repeats."""
    for k, m, pairs_of_answers in ((1, 1, 30), (4, 1, 30), (4, 4, 120), (64, 2, 60)):
        pairs = _draw(numpy.random.default_rng(1), k, m, numpy.ones(30), numpy.ones(30))
        most = 2.7055 / (pairs_of_answers + 2.7055)
        assert bounds(pairs, 0.05).lower == pytest.approx(-most, rel=1e-3)


def test_64_repeats_of_30_questions_exclude_a_margin_of_5_points():
    """The spread between the questions, which the old bound charged, excluded it in 1 %."""
    random = numpy.random.default_rng(52)
    ours = old = 0
    for _ in range(REPLICATES):
        chances = random.beta(1.0, 1.0, 30)
        pairs = _draw(random, 64, 64, chances, random.permutation(chances))
        same = _draw(random, 64, 64, chances, chances)
        ours += noninferiority(same, 0.05, 0.05).holds
        old += mean_score_lower_bound(pairs.worst, 0.05) > -0.05
    assert ours >= 0.9 * REPLICATES
    assert old <= 0.5 * REPLICATES


@pytest.mark.parametrize(("k", "m"), [(2, 2), (3, 8), (64, 2), (64, 64)])
@pytest.mark.parametrize("chance", [0.97, 0.5, 0.12])
def test_a_drop_of_the_margin_is_excluded_at_the_level(k, m, chance):
    random = numpy.random.default_rng(k + m)
    before = numpy.full(30, chance)
    excluded = sum(
        noninferiority(_draw(random, k, m, before, before - 0.1), 0.1, 0.05).holds
        for _ in range(REPLICATES)
    )
    assert excluded <= acceptance_region(REPLICATES, 0.05)[1]


def test_questions_that_a_build_redraws_do_not_widen_the_bounds():
    """Half of the questions are won and half lost for good: on these questions nothing is lost."""
    before = numpy.array([1.0, 0.0] * 15)
    pairs = _draw(numpy.random.default_rng(3), 64, 64, before, 1.0 - before)
    assert bounds(pairs, 0.05).lower > -0.05
    assert equivalence(pairs, 0.05, 0.05).holds


def test_a_missing_repeat_counts_at_both_ends():
    runs = numpy.ones((4, 30))
    lacking = runs.copy()
    lacking[0, :3] = numpy.nan
    known = bounds(pair(runs, runs, lo=0, hi=1, higher_is_better=True), 0.05)
    found = bounds(pair(runs, lacking, lo=0, hi=1, higher_is_better=True), 0.05)
    assert found.lower < known.lower == found.lower_at_best


def test_scores_without_a_range_take_the_answers_as_units():
    random = numpy.random.default_rng(4)
    usual = random.normal(0.0, 5.0, 40)
    sides = [usual + random.normal(0.0, 0.1, (8, 40)) for _ in range(2)]
    sides[1] += random.normal(0.0, 1.0, 40)  # another build: its differences vary by question
    pairs = pair(*sides, lo=-numpy.inf, hi=numpy.inf, higher_is_better=True)
    found = bounds(pairs, 0.05)
    assert found.method is BoundsMethod.T
    mean = float(numpy.mean(sides[1] - sides[0]))
    assert mean - found.lower < 0.12  # by question it would be .27


def test_repeats_of_a_cluster_are_units():
    before = numpy.full(40, 0.7)
    pairs = _draw(numpy.random.default_rng(6), 16, 16, before, before)
    clustered = pair(
        pairs.reference, pairs.candidate, lo=0, hi=1, higher_is_better=True,
        clusters=[i // 2 for i in range(40)],
    )  # fmt: skip
    alone, together = bounds(pairs, 0.05), bounds(clustered, 0.05)
    assert together.lower == pytest.approx(alone.lower, abs=0.01)


REPLICATES_EQUAL_ACCURACY = 300


@pytest.mark.parametrize(("lost", "factor"), [(4, 1.0), (5, 1.0), (6, 1.05), (9, 7.0)])
def test_a_steady_build_loses_a_binomial_number_of_prompts(lost, factor):
    """A reference that is known to be right with .97 against a build that always answers alike.

    With many lost prompts the end of the range, whole prompts won, makes p larger, never smaller.
    """
    found = equal_accuracy_test([-0.97] * lost + [0.03] * (100 - lost))
    above, at = binom.sf(lost, 100, 0.03), binom.pmf(lost, 100, 0.03)
    assert 1.0 - 1e-6 <= found.p_exact / (above + at) <= factor + 1e-6
    assert 1.0 - 1e-6 <= found.p_mid / (above + at / 2.0) <= factor + 1e-6


def test_a_prompt_that_was_not_won_could_have_been():
    """100 prompts that are right with .03 on one side, and never on the other."""
    assert equal_accuracy_test([-0.03] * 100).p_exact == pytest.approx((1 / 1.03) ** 100, rel=1e-6)
    assert sign_flip_test([-0.03] * 100).p_exact < 1e-20


def test_the_end_is_the_largest_gain_that_a_prompt_could_have():
    """Prompts that are right half of the time can gain half an answer on average, not a whole."""
    values = [-0.25, -0.125, 0.0, 0.125, -0.25] * 6
    assert equal_accuracy_test(values, 0.55).p_mid < 0.5 * equal_accuracy_test(values).p_mid
    assert equal_accuracy_test(values, 0.01).p_mid == equal_accuracy_test(values, 0.125).p_mid
    pairs = pair([[0.0, 1.0]] * 2, [[0.0, 1.0]] * 2, lo=0, hi=1, higher_is_better=True)
    assert average_largest_gain(pairs, at_best=False) == 1.0
    half = pair([[0, 1], [1, 0]], [[1, 0], [0, 1]], lo=0, hi=1, higher_is_better=False)
    assert average_largest_gain(half, at_best=False) == 0.5


def test_a_total_loss_is_proven_although_nothing_could_be_gained():
    assert equal_accuracy_test([-1.0] * 30, 0.0).p_exact == pytest.approx(0.5**30)
    lost = pair(numpy.ones((3, 30)), numpy.zeros((3, 30)), lo=0, hi=1, higher_is_better=True)
    assert (drop_test(lost).p or 1.0) < 1e-9


def test_no_change_and_equal_means_are_no_drop():
    assert equal_accuracy_test([0.0] * 50).p_mid == 1.0
    assert equal_accuracy_test([0.25, -0.25] * 20).p_mid == pytest.approx(0.5, abs=1e-9)


@given(
    st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0]), min_size=10, max_size=60)
)
@settings(max_examples=60)
def test_a_drop_and_its_mirrored_gain_have_opposite_chances(values):
    if not any(values):
        return
    down, up = equal_accuracy_test(values), equal_accuracy_test([-value for value in values])
    assert down.p_mid == pytest.approx(1.0 - up.p_mid, abs=1e-9)
    assert 0.0 <= down.p_mid <= down.p_exact <= 1.0 + 1e-12


def test_many_symmetric_differences_agree_with_sign_flips():
    random = numpy.random.default_rng(3)
    for shift in (0.0, 0.02, 0.05):
        values = random.choice([-2 / 3, -1 / 3, 0.0, 1 / 3, 2 / 3], 600) - shift * (
            random.random(600) < 0.3
        )
        values = values.clip(-1.0, 1.0)
        assert equal_accuracy_test(values).p_mid == pytest.approx(
            sign_flip_test(values).p_mid, abs=0.012
        )


def test_the_saddlepoint_agrees_with_the_exact_sum(monkeypatch):
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


def test_values_beyond_the_range_are_refused():
    with pytest.raises(ServeEvalError, match=r"outside -1\.\.1"):
        equal_accuracy_test([1.5, 0.0])


@pytest.mark.parametrize("clustered", [False, True])
def test_scores_without_a_range_are_scaled_to_the_largest_change(clustered):
    random = numpy.random.default_rng(8)
    usual = random.normal(0.0, 5.0, 60)
    reference = usual + random.normal(0.0, 1.0, (3, 60))

    def test(lost):
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


def _steadier(random, n, chance):
    """Pair runs that are right with `chance` with 8 of a build that always answers alike."""
    steady = numpy.repeat([(random.random(n) < chance) * 1.0], 8, axis=0)
    runs = (random.random((8, n)) < chance) * 1.0
    return pair(runs, steady, lo=0.0, hi=1.0, higher_is_better=True)


def test_a_steadier_build_of_equal_accuracy_is_no_drop():
    """Sign flips alone call 13 % of these builds worse."""
    random = numpy.random.default_rng(11)
    pairs = [_steadier(random, 100, 0.03) for _ in range(REPLICATES_EQUAL_ACCURACY)]
    proven = sum((drop_test(one).p or 0.0) <= 0.05 for one in pairs)
    flips = sum((drop_test(one, Method.SIGN_FLIP).p or 0.0) <= 0.05 for one in pairs)
    most = acceptance_region(REPLICATES_EQUAL_ACCURACY, 0.05)[1]
    assert proven <= most < flips


def test_suites_of_forty_steadier_builds_keep_their_level():
    """Under Holm's correction a test has the level .05 / 40, deep in the tail."""
    random = numpy.random.default_rng(12)
    pairs = [_steadier(random, 30, 0.1) for _ in range(REPLICATES_EQUAL_ACCURACY)]
    proven = sum((drop_test(one).p or 0.0) <= 0.05 / 40 for one in pairs)
    flips = sum((drop_test(one, Method.SIGN_FLIP).p or 0.0) <= 0.05 / 40 for one in pairs)
    assert proven <= 2 < 6 <= flips  # 3 or more have a chance of .007
