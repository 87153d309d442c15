"""Test measures of whole sets of answers: sums such as BLEU, precision and recall."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.scorers._served_call import TriggerCounts, count_trigger
from serve_eval.scorers.translation import corpus_bleu
from serve_eval.stats.bounds import BoundsMethod, bounds
from serve_eval.stats.clusters import mean_gradient, pair_sums
from serve_eval.stats.drop import drop_test
from serve_eval.stats.judgement import Reason, judge

WORDS = [10.0, 20.0, 5.0, 15.0, 0.0]


def _rate(sums: object) -> float:
    edits, words = sums  # type: ignore[misc]
    return float(edits / words)


def test_the_mean_difference_is_that_of_the_ratios_and_negative_is_worse() -> None:
    before, after = [1.0, 2.0, 0.0, 3.0, 0.0], [1.0, 4.0, 0.0, 2.0, 2.0]
    pairs = pair_sums(
        [[before, WORDS]], [[after, WORDS]], _rate, higher_is_better=False, limits=(128.0, 0.0)
    )
    assert drop_test(pairs).mean == pytest.approx(-(sum(after) - sum(before)) / sum(WORDS))
    # An utterance without a reference word counts by its edits alone.
    assert pairs.differences == pytest.approx(
        [-5.0 * (b - a) / sum(WORDS) for a, b in zip(before, after, strict=True)]
    )


def test_p_is_that_of_exchanging_the_sides_of_every_choice_of_prompts() -> None:
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


def test_speakers_are_exchanged_as_a_whole() -> None:
    words = [10.0] * 12
    before, after = [1.0] * 12, [2.0] * 12
    alone, grouped = (
        pair_sums([[before, words]], [[after, words]], _rate, higher_is_better=False, groups=groups)
        for groups in ((), [f"s{i // 3}" for i in range(12)])
    )
    assert (alone.units, grouped.units) == (12, 4)
    assert drop_test(alone).p_exact == pytest.approx(0.5**12)
    assert drop_test(grouped).p_exact == pytest.approx(0.5**4)


def _kinked(sums: object) -> float:
    a, b = sums  # type: ignore[misc]
    return float(min(1.0, a / b) + a * a / (a * a + b * b))


@pytest.mark.parametrize("after", [[80.0, 100.0], [130.0, 100.0], [0.0, 100.0]])
def test_the_gradient_explains_the_whole_difference_also_across_a_kink(after: list[float]) -> None:
    ends = numpy.array([90.0, 100.0]), numpy.array(after)
    gradient = mean_gradient(_kinked, *ends)
    explained = float(gradient @ (ends[1] - ends[0]))
    assert explained == pytest.approx(_kinked(ends[1]) - _kinked(ends[0]), rel=0.04)


def test_unchanged_answers_exclude_a_drop_only_as_far_as_the_longest_answer_allows() -> None:
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


def test_a_longer_answer_than_the_limit_widens_the_range() -> None:
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


def test_with_thirty_changes_the_bounds_are_those_of_t_over_speakers() -> None:
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


def test_a_missing_answer_counts_as_free_of_errors_and_as_the_longest_one() -> None:
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


def test_nine_speakers_are_too_few_for_a_conclusion() -> None:
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


def test_p_of_bleu_is_near_that_of_computing_bleu_for_every_exchange() -> None:
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
        assert told.p is not None
        found.append(told.p - (below + ties / 2.0) / len(drops))
    assert max(map(abs, found)) < 0.05


def test_sides_that_do_not_fit_are_refused() -> None:
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
def test_shares_are_those_of_the_counts(
    counts: TriggerCounts, precision: float, recall: float, f1: float
) -> None:
    assert (counts.precision, counts.recall, counts.f1) == pytest.approx((precision, recall, f1))


def test_each_choice_is_right_unwanted_missed_or_rightly_left_out() -> None:
    choices = [(True, True)] * 5 + [(False, True)] * 3 + [(True, False)] * 2 + [(False, False)] * 7
    assert count_trigger(choices) == TriggerCounts(right=5, unwanted=3, missed=2)
