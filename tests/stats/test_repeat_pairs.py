"""Test the drop on these questions, whose noise is that of the answers alone."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.stats.bounds import BoundsMethod, bounds, equivalence, noninferiority
from serve_eval.stats.multiplicity import acceptance_region
from serve_eval.stats.pairs import Pairs, pair, pair_repeats
from serve_eval.stats.score_bounds import mean_score_lower_bound, score_bounds

REPLICATES = 200


def _draw(random: numpy.random.Generator, k: int, m: int, before: object, after: object) -> Pairs:
    chances, now = numpy.asarray(before), numpy.asarray(after)
    sides = [(random.random((runs, len(p))) < p) * 1.0 for runs, p in ((k, chances), (m, now))]
    return pair(*sides, lo=0.0, hi=1.0, higher_is_better=True)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=60)
def test_every_answer_counts_alike(k: int, m: int, n: int, seed: int) -> None:
    random = numpy.random.default_rng(seed)
    reference, candidate = random.random((k, n)), random.random((m, n))
    found = pair_repeats(reference, candidate)
    assert found.shape[1:] == (min(k, m), n)
    assert found.mean(axis=(0, 1)) == pytest.approx(candidate.mean(axis=0) - reference.mean(axis=0))


def test_one_answer_a_side_has_the_bounds_of_the_pairs() -> None:
    pairs = _draw(numpy.random.default_rng(1), 1, 1, numpy.full(60, 0.8), numpy.full(60, 0.7))
    assert pairs.down is not None
    assert pairs.up is not None
    assert bounds(pairs, 0.05).lower == score_bounds(pairs.down, pairs.up, 60, 0.05)[0]


def test_equal_answers_exclude_a_smaller_drop_the_more_there_are() -> None:
    """N pairs of equal answers exclude z^2 / (N + z^2), whether by prompts or by repeats."""
    for k, m, pairs_of_answers in ((1, 1, 30), (4, 1, 30), (4, 4, 120), (64, 2, 60)):
        pairs = _draw(numpy.random.default_rng(1), k, m, numpy.ones(30), numpy.ones(30))
        most = 2.7055 / (pairs_of_answers + 2.7055)
        assert bounds(pairs, 0.05).lower == pytest.approx(-most, rel=1e-3)


def test_64_repeats_of_30_questions_exclude_a_margin_of_5_points() -> None:
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
def test_a_drop_of_the_margin_is_excluded_at_the_level(k: int, m: int, chance: float) -> None:
    random = numpy.random.default_rng(k + m)
    before = numpy.full(30, chance)
    excluded = sum(
        noninferiority(_draw(random, k, m, before, before - 0.1), 0.1, 0.05).holds
        for _ in range(REPLICATES)
    )
    assert excluded <= acceptance_region(REPLICATES, 0.05)[1]


def test_questions_that_a_build_redraws_do_not_widen_the_bounds() -> None:
    """Half of the questions are won and half lost for good: on these questions nothing is lost."""
    before = numpy.array([1.0, 0.0] * 15)
    pairs = _draw(numpy.random.default_rng(3), 64, 64, before, 1.0 - before)
    assert bounds(pairs, 0.05).lower > -0.05
    assert equivalence(pairs, 0.05, 0.05).holds


def test_a_missing_repeat_counts_at_both_ends() -> None:
    runs = numpy.ones((4, 30))
    lacking = runs.copy()
    lacking[0, :3] = numpy.nan
    known = bounds(pair(runs, runs, lo=0, hi=1, higher_is_better=True), 0.05)
    found = bounds(pair(runs, lacking, lo=0, hi=1, higher_is_better=True), 0.05)
    assert found.lower < known.lower == found.lower_at_best


def test_scores_without_a_range_take_the_answers_as_units() -> None:
    random = numpy.random.default_rng(4)
    usual = random.normal(0.0, 5.0, 40)
    sides = [usual + random.normal(0.0, 0.1, (8, 40)) for _ in range(2)]
    sides[1] += random.normal(0.0, 1.0, 40)  # another build: its differences vary by question
    pairs = pair(*sides, lo=-numpy.inf, hi=numpy.inf, higher_is_better=True)
    found = bounds(pairs, 0.05)
    assert found.method is BoundsMethod.T
    mean = float(numpy.mean(sides[1] - sides[0]))
    assert mean - found.lower < 0.12  # by question it would be .27


def test_repeats_of_a_cluster_are_units() -> None:
    before = numpy.full(40, 0.7)
    pairs = _draw(numpy.random.default_rng(6), 16, 16, before, before)
    clustered = pair(
        pairs.reference, pairs.candidate, lo=0, hi=1, higher_is_better=True,
        clusters=[i // 2 for i in range(40)],
    )  # fmt: skip
    alone, together = bounds(pairs, 0.05), bounds(clustered, 0.05)
    assert together.lower == pytest.approx(alone.lower, abs=0.01)
