"""Test statistics of whole sets of answers: sums, missing answers and low scores."""

import itertools
import json
import math
import statistics
from fractions import Fraction
from itertools import product

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.scorers._served_call import TriggerCounts, count_trigger
from serve_eval.stats.bounds import BoundsMethod, bounds
from serve_eval.stats.clusters import mean_gradient, pair_sums
from serve_eval.stats.contingency import find_cut
from serve_eval.stats.drop import drop_test
from serve_eval.stats.early_stop import ON_NONE, log_wealth, most_missing
from serve_eval.stats.intervals import bound_missing, failure_rate_upper
from serve_eval.stats.judgement import Reason, judge
from serve_eval.tasks.covost2 import corpus_bleu

WORDS = [10.0, 20.0, 5.0, 15.0, 0.0]


def _rate(sums):
    edits, words = sums
    return float(edits / words)


def test_the_mean_difference_is_that_of_the_ratios_and_negative_is_worse():
    before, after = [1.0, 2.0, 0.0, 3.0, 0.0], [1.0, 4.0, 0.0, 2.0, 2.0]
    pairs = pair_sums(
        [[before, WORDS]], [[after, WORDS]], _rate, higher_is_better=False, limits=(128.0, 0.0)
    )
    assert drop_test(pairs).mean == pytest.approx(-(sum(after) - sum(before)) / sum(WORDS))
    # An utterance without a reference word counts by its edits alone.
    assert pairs.differences == pytest.approx(
        [-5.0 * (b - a) / sum(WORDS) for a, b in zip(before, after, strict=True)]
    )


def test_p_is_that_of_exchanging_the_sides_of_every_choice_of_prompts():
    random = numpy.random.default_rng(1)
    words = random.integers(5, 40, 10).astype(float)
    before, after = (random.binomial(words.astype(int), 0.1).astype(float) for _ in "ab")
    pairs = pair_sums([[before, words]], [[after, words]], _rate, higher_is_better=False)
    observed = (after - before).sum()
    sums = [
        float(numpy.dot(signs, after - before))
        for signs in itertools.product((-1.0, 1.0), repeat=10)
    ]
    above = sum(one > observed + 1e-9 for one in sums)
    ties = sum(abs(one - observed) <= 1e-9 for one in sums)
    assert drop_test(pairs).p == pytest.approx((above + ties / 2.0) / len(sums))
    assert drop_test(pairs).p_exact == pytest.approx((above + ties) / len(sums))


def test_speakers_are_exchanged_as_a_whole():
    words = [10.0] * 12
    before, after = [1.0] * 12, [2.0] * 12
    alone, grouped = (
        pair_sums([[before, words]], [[after, words]], _rate, higher_is_better=False, groups=groups)
        for groups in ((), [f"s{i // 3}" for i in range(12)])
    )
    assert (alone.units, grouped.units) == (12, 4)
    assert drop_test(alone).p_exact == pytest.approx(0.5**12)
    assert drop_test(grouped).p_exact == pytest.approx(0.5**4)


def test_a_prompt_that_lacks_a_part_in_one_of_three_runs_counts_by_the_others():
    before = numpy.array([[[1.0, 2.0, 3.0, 4.0], [8.0] * 4]] * 3)
    before[0, 0, 1] = math.nan
    pairs = pair_sums(before, before + 1.0, _rate, higher_is_better=False)
    assert pairs.missing == 1
    assert len(pairs.differences) == 3


def _kinked(sums):
    a, b = sums
    return float(min(1.0, a / b) + a * a / (a * a + b * b))


@pytest.mark.parametrize("after", [[80.0, 100.0], [130.0, 100.0], [0.0, 100.0]])
def test_the_gradient_explains_the_whole_difference_also_across_a_kink(after):
    ends = numpy.array([90.0, 100.0]), numpy.array(after)
    gradient = mean_gradient(_kinked, *ends)
    explained = float(gradient @ (ends[1] - ends[0]))
    assert explained == pytest.approx(_kinked(ends[1]) - _kinked(ends[0]), rel=0.04)


def test_unchanged_answers_exclude_a_drop_only_as_far_as_the_longest_answer_allows():
    words = numpy.full(1842, 24.0)
    edits = numpy.ones(1842)
    speakers = [f"s{i % 100}" for i in range(1842)]
    known = pair_sums(
        [[edits, words]],
        [[edits, words]],
        _rate,
        higher_is_better=False,
        limits=(128.0, 0.0),
        groups=speakers,
    )
    found = bounds(known, 0.05)
    assert found.method is BoundsMethod.SCORE
    # Tango's bound without a change, -z^2 / (n + z^2), times the range of 128 edits.
    z = 1.6448536269514722
    assert found.lower == pytest.approx(-(z**2) / (1842 + z**2) * 128.0 / 24.0, rel=1e-6)
    unknown = pair_sums([[edits, words]], [[edits, words]], _rate, higher_is_better=False)
    assert bounds(unknown, 0.05).method is BoundsMethod.NONE


def test_a_longer_answer_than_the_limit_widens_the_range():
    words, before = numpy.full(20, 10.0), numpy.zeros(20)
    after = before.copy()
    after[0] = 500.0
    pairs = pair_sums(
        [[before, words]], [[after, words]], _rate, higher_is_better=False, limits=(128.0, 0.0)
    )
    assert pairs.span == pytest.approx(20 * 500.0 / 200.0)
    small = pair_sums(
        [[before, words]],
        [[after, words]],
        lambda sums: 1e-6 * _rate(sums),
        higher_is_better=False,
        limits=(128.0, 0.0),
    )
    assert small.span == pytest.approx(1e-6 * 20 * 500.0 / 200.0)


def test_with_thirty_changes_the_bounds_are_those_of_t_over_speakers():
    random = numpy.random.default_rng(2)
    words = random.integers(5, 60, 400).astype(float)
    before, after = (random.binomial(words.astype(int), 0.06).astype(float) for _ in "ab")
    speakers = numpy.arange(400) % 40
    pairs = pair_sums(
        [[before, words]],
        [[after, words]],
        _rate,
        higher_is_better=False,
        limits=(128.0, 0.0),
        groups=[f"s{one}" for one in speakers],
    )
    changes = (before - after) / words.sum()
    mean = float(changes.sum())
    # The words of a speaker are no part of the difference, which is centred per prompt.
    centred = changes - mean / 400
    sums = numpy.bincount(speakers, centred)
    from scipy.special import stdtrit

    half = float(stdtrit(39, 0.95)) * math.sqrt(40 / 39 * float((sums**2).sum()))
    found = bounds(pairs, 0.05)
    assert found.method is BoundsMethod.T
    assert (found.lower, found.upper) == pytest.approx((mean - half, mean + half))


def test_a_missing_answer_counts_as_free_of_errors_and_as_the_longest_one():
    words = numpy.full(100, 10.0)
    before, after = numpy.zeros(100), numpy.zeros(100)
    before[:40] = 1.0
    after[20:40] = 1.0
    after[99] = math.nan
    pairs = pair_sums(
        [[before, words]], [[after, words]], _rate, higher_is_better=False, limits=(128.0, 0.0)
    )
    assert pairs.missing == 1
    assert pairs.missing_share == pytest.approx(0.01)
    assert pairs.best[99] == pytest.approx(0.0)
    assert pairs.worst[99] == pytest.approx(-128.0 / 10.0)
    assert judge(pairs, margin=0.05).test.p_range != (1.0, 1.0)


def test_nine_speakers_are_too_few_for_a_conclusion():
    words, before = numpy.full(90, 10.0), numpy.zeros(90)
    after = numpy.ones(90)
    for speakers, reasons in ((9, (Reason.FEW_CLUSTERS,)), (10, ())):
        pairs = pair_sums(
            [[before, words]],
            [[after, words]],
            _rate,
            higher_is_better=False,
            groups=[f"s{i % speakers}" for i in range(90)],
        )
        assert judge(pairs, margin=0.05).reasons == reasons


def test_p_of_bleu_is_near_that_of_computing_bleu_for_every_exchange():
    random = numpy.random.default_rng(3)
    n, found = 12, []
    for _ in range(3):
        sides = []
        for less in (0.0, 0.12):
            lengths = random.integers(8, 20, n)
            hits = [random.random(length) < 0.75 - less for length in lengths]
            runs = [
                [sum(hit[k : k + size].all() for k in range(len(hit) - size + 1)) for hit in hits]
                for size in (1, 2, 3, 4)
            ]
            possible = [lengths - size for size in range(4)]
            sides.append(numpy.array([lengths, numpy.full(n, 14), *runs, *possible], dtype=float))
        before, after = sides
        total = (before + after).sum(axis=1)
        swapped = numpy.array(list(itertools.product((0.0, 1.0), repeat=n)))
        ones = before.sum(axis=1) + swapped @ (after - before).T
        drops = [corpus_bleu((total - one).tolist()) - corpus_bleu(one.tolist()) for one in ones]
        below = sum(drop < drops[0] - 1e-12 for drop in drops)
        ties = sum(abs(drop - drops[0]) <= 1e-12 for drop in drops)
        pairs = pair_sums([before], [after], corpus_bleu, higher_is_better=True)
        told = drop_test(pairs)
        assert told.mean == pytest.approx(drops[0], rel=0.02)
        found.append(told.p - (below + ties / 2.0) / len(drops))
    assert max(map(abs, found)) < 0.05


def test_sides_that_do_not_fit_are_refused():
    parts = [[1.0, 2.0], [5.0, 5.0]]
    with pytest.raises(ServeEvalError, match="none of the 2 prompts"):
        pair_sums([parts], [[[math.nan] * 2, [5.0] * 2]], _rate, higher_is_better=False)
    with pytest.raises(ServeEvalError, match="the sides have parts"):
        pair_sums([parts], [[[1.0], [5.0]]], _rate, higher_is_better=False)
    with pytest.raises(ServeEvalError, match="there are no sums"):
        pair_sums([], [parts], _rate, higher_is_better=False)


@pytest.mark.parametrize(
    ("counts", "precision", "recall", "f1"),
    [
        (TriggerCounts(6, 2, 4), 6 / 8, 6 / 10, 12 / 18),
        (TriggerCounts(6, 0, 4), 1.0, 6 / 10, 12 / 16),
        (TriggerCounts(6, 2, 0), 6 / 8, 1.0, 12 / 14),
        (TriggerCounts(0, 2, 0), 0.0, 1.0, 0.0),
        (TriggerCounts(0, 0, 2), 1.0, 0.0, 0.0),
        (TriggerCounts(0, 0, 0), 1.0, 1.0, 1.0),
    ],
)
def test_shares_are_those_of_the_counts(counts, precision, recall, f1):
    assert (counts.precision, counts.recall, counts.f1) == pytest.approx((precision, recall, f1))


def test_each_choice_is_right_unwanted_missed_or_rightly_left_out():
    choices = [(True, True)] * 5 + [(False, True)] * 3 + [(True, False)] * 2 + [(False, False)] * 7
    assert count_trigger(choices) == TriggerCounts(right=5, unwanted=3, missed=2)


def _probability(planned, all_missing, pattern):
    """Return the probability of a prefix with exactly these answers missing.

    It is built one prompt at a time.
    """
    found, left, missing = Fraction(1), planned, all_missing
    for lost in pattern:
        found *= Fraction(max(0, missing if lost else left - missing), left)
        left, missing = left - 1, missing - lost
    return found


def _wealth(planned, most, pattern):
    return math.exp(log_wealth(planned, most, len(pattern), sum(pattern)))


@pytest.mark.parametrize(
    ("planned", "most", "length"), [(8, 2, 5), (10, 0, 6), (9, 4, 7), (7, 7, 4)]
)
def test_the_wealth_is_the_averaged_ratio_of_probabilities(planned, most, length):
    for pattern in product((False, True), repeat=length):
        null = _probability(planned, most + 1, pattern) if most < planned else Fraction(0)
        if sum(pattern) > most:
            assert _wealth(planned, most, pattern) == 0.0
        elif not null:
            assert _wealth(planned, most, pattern) == math.inf
        else:
            weights = [ON_NONE] + [(1 - ON_NONE) / most] * most if most else [1.0]
            wanted = sum(
                w * float(_probability(planned, j, pattern) / null) for j, w in enumerate(weights)
            )
            assert _wealth(planned, most, pattern) == pytest.approx(wanted)


@given(st.integers(2, 12), st.data())
def test_it_grows_on_average_for_no_number_of_missing_ones_above_the_most(planned, data):
    most = data.draw(st.integers(0, planned - 1))
    truth = data.draw(st.integers(most + 1, planned))
    missing = data.draw(st.integers(0, most))
    looked_at = data.draw(st.integers(missing, planned - 1))
    if looked_at - missing > planned - truth:
        return
    left, lost = planned - looked_at, truth - missing
    now = math.exp(log_wealth(planned, most, looked_at, missing))
    later = 0.0
    if lost:
        later += lost / left * math.exp(log_wealth(planned, most, looked_at + 1, missing + 1))
    if left > lost:
        later += (left - lost) / left * math.exp(log_wealth(planned, most, looked_at + 1, missing))
    assert later <= now * (1 + 1e-9)


@pytest.mark.parametrize(
    ("planned", "share", "most"),
    [
        (100, 0.02, 2),
        (198, 0.02, 3),
        (30, 0.02, 0),
        (100, 0.29, 29),
        (100, 0.07, 7),
        (150, 0.02, 3),
        (9, 1.0, 9),
    ],
)
def test_the_most_is_the_largest_number_that_the_whole_run_is_judged_with(planned, share, most):
    assert most_missing(planned, share) == most
    assert most / planned <= share
    assert most == planned or (most + 1) / planned > share


@pytest.mark.parametrize(
    ("planned", "asked"), [(30, 30), (100, 79), (198, 138), (1319, 212), (4096, 230)]
)
def test_what_it_takes_where_nothing_is_missing(planned, asked):
    """Knowing at .01 that at most 2 % will be missing takes nearly all of a small run."""
    most = most_missing(planned, 0.02)
    first = next(
        k for k in range(1, planned + 1) if log_wealth(planned, most, k, 0) >= math.log(100)
    )
    assert first == asked


@pytest.mark.parametrize(
    ("total", "scored", "planned", "low", "high"),
    [
        (279000.0, 4056, 4096, 68.115234375, 69.091796875),
        (7100.0, 100, 100, 71.0, 71.0),
        (0.0, 0, 10, 0.0, 100.0),
    ],
)
def test_bounds_of_known_cases(total, scored, planned, low, high):
    assert bound_missing(total, scored, planned, 0.0, 100.0) == (
        pytest.approx(low),
        pytest.approx(high),
    )


def test_the_shared_vectors_hold_to_their_tolerance(shared):
    vectors = json.loads((shared / "vectors" / "verdict_vectors.json").read_text())["vectors"]
    chosen = [v for v in vectors if v["kind"] == "missing_bounds"]
    assert len(chosen) == 2
    for vector in chosen:
        low, high = bound_missing(**vector["inputs"])
        assert low == pytest.approx(vector["expected"]["lower"], abs=vector["tolerance"])
        assert high == pytest.approx(vector["expected"]["upper"], abs=vector["tolerance"])


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1), st.data())
def test_the_full_mean_always_lies_within_the_bounds(scores, data):
    had = data.draw(st.integers(0, len(scores)))
    low, high = bound_missing(sum(scores[:had]), had, len(scores), 0.0, 1.0)
    assert low - 1e-12 <= sum(scores) / len(scores) <= high + 1e-12


@pytest.mark.parametrize(("scored", "planned"), [(1, 0), (0, 0), (3, 2), (-1, 2)])
def test_impossible_counts_are_refused(scored, planned):
    with pytest.raises(ServeEvalError):
        bound_missing(0.0, scored, planned, 0.0, 1.0)


@pytest.mark.parametrize(
    ("failures", "n", "upper"),
    [(0, 4096, 0.0007311125564754341), (41, 4096, 0.012968286817979428), (5, 5, 1.0)],
)
def test_the_upper_bound_equals_the_exact_one(failures, n, upper):
    assert failure_rate_upper(failures, n) == pytest.approx(upper, abs=1e-9)


def test_the_shared_vectors_hold_to_their_tolerance_availability(vectors):
    for vector in vectors("clopper_pearson_upper"):
        upper = failure_rate_upper(**vector["inputs"])
        assert upper == pytest.approx(vector["expected"]["upper"], abs=vector["tolerance"]), vector[
            "id"
        ]


@given(st.integers(1, 5000), st.data())
def test_one_more_failure_raises_the_bound_and_it_lies_above_the_share(n, data):
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
def test_impossible_counts_are_refused_availability(arguments, message):
    with pytest.raises(ServeEvalError, match=message) as caught:
        failure_rate_upper(*arguments)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("values", "best", "low"),
    [
        ([0.5] * 60 + [1.0] * 40, 1.0, 60),
        ([0.5] * 99 + [1.0], 1.0, 99),
        ([0.5] * 100, 1.0, 100),
        ([0.5] * 100, None, 0),
        ([1.0] * 100, 1.0, 0),
        ([0.5] * 5 + [1.0] * 95, 1.0, 5),
        ([0.0] * 2 + [0.5] * 60 + [1.0] * 38, 1.0, 62),
        ([0.5] * 20 + [0.75] * 60 + [1.0] * 20, 1.0, 20),
        ([0.0] * 30 + [1.0] * 70, 1.0, 30),
        ([-7.0, -5.0, -3.0], None, 1),
    ],
)
def test_the_lower_half_of_scores_with_ties(values, best, low):
    cut = find_cut(values, best)
    assert sum(value < cut for value in values) == low


@given(st.lists(st.floats(0, 1), min_size=1, unique=True))
def test_of_different_scores_the_lower_half_is_that_of_the_median(values):
    cut = find_cut(values)
    below = sum(value < statistics.median(values) for value in values)
    assert sum(value < cut for value in values) == below or len(values) == 1


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1))
def test_something_is_low_unless_all_scores_are_the_best(values):
    assert any(value < find_cut(values, 1.0) for value in values) == (min(values) < 1.0)
