"""Test that the guards of slices count groups, and hold where whole groups are lost together."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from serve_eval.stats.largest_statistic import Units, as_table
from serve_eval.stats.losses import reject_uniform_loss
from serve_eval.stats.slices import (
    _compare_answers,
    find_answer_slice,
    find_paired_slice,
    find_unpaired_slice,
)

GROUPS, SIZE = 100, 5
CLUSTERS = numpy.arange(GROUPS * SIZE) // SIZE
N = GROUPS * SIZE


def _of(groups: int) -> NDArray[Any]:
    """Return True for the prompts of the first groups."""
    return groups > CLUSTERS


def _table(*slices: NDArray[Any]) -> NDArray[Any]:
    return numpy.stack(slices, axis=1)


@pytest.mark.parametrize(("lost", "named"), [(4, False), (5, False), (6, True)])
def test_a_slice_of_few_lost_groups_is_not_named_however_many_prompts_they_have(
    lost: int, named: bool
) -> None:
    """Four groups are 20 prompts, and the test of whole groups has a p below the level."""
    bad, table = _of(lost), _table(_of(8), ~_of(8))
    found = find_unpaired_slice(bad, table, numpy.zeros(N), level=0.01, clusters=CLUSTERS)
    assert (found is not None) is named
    pairs = find_paired_slice(numpy.ones(N), ~bad, table, level=0.07, clusters=CLUSTERS)
    assert (pairs is not None) is named


@pytest.mark.parametrize(("lost", "named"), [(4, False), (8, True)])
def test_a_slice_of_answers_needs_as_many_groups(lost: int, named: bool) -> None:
    before, bad = (CLUSTERS < 60).astype(float), _of(lost)
    short = numpy.zeros(N, dtype=bool)
    sides = _table(short, short), _table(_of(8), ~_of(8))
    after = before * ~bad
    found = find_answer_slice(before, after, sides, level=0.07, clusters=CLUSTERS)
    assert (found is not None) is named
    assert find_answer_slice(before, after, sides, level=0.07) is not None


@pytest.mark.parametrize(("inside", "named"), [(7, False), (8, True)])
def test_a_slice_has_eight_groups_inside_and_outside(inside: int, named: bool) -> None:
    """Seven groups are 35 prompts."""
    bad = _of(7)
    for table in (_of(inside), GROUPS - inside <= CLUSTERS):
        lost = bad if table[0] else bad[::-1]
        found = find_unpaired_slice(
            lost, _table(table), numpy.zeros(N), level=0.01, clusters=CLUSTERS
        )
        assert (found is not None) is named
    almost = Units(CLUSTERS, N).large_enough(as_table(_table(~_of(7), ~_of(11)), N))
    assert almost.tolist() == [False, True]  # 93 % of the prompts, and 89 %


def test_parts_of_groups_are_inside_and_outside() -> None:
    """A slice with one prompt of each group has all groups inside, and all outside."""
    one = numpy.arange(N) % SIZE == 0
    table = as_table(_table(one), N)
    units = Units(CLUSTERS, N)
    assert units.large_enough(table).tolist() == [True]
    assert units.count_inside(table, _of(10)).tolist() == [10]
    assert units.in_units(numpy.array([10.0]), table, one & _of(10)).tolist() == [10.0]
    assert units.in_units(numpy.array([50.0]), as_table(_table(_of(90)), N), _of(10)) == [10.0]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_units_agree_with_plain_counts(seed: int) -> None:
    random = numpy.random.default_rng(seed)
    clusters = random.integers(0, 12, 60)
    change = random.integers(-1, 2, 60).astype(float)
    slices = random.random((60, 4)) < random.random(4)
    table, units = as_table(slices, 60), Units(clusters, 60)
    squares, counts = units.squares_outside(table, change), units.count_inside(table, change > 0)
    for place in range(4):
        inside = slices[:, place]
        sums = [change[(clusters == one) & ~inside].sum() for one in set(clusters.tolist())]
        assert squares[place] == pytest.approx(sum(one**2 for one in sums))
        assert counts[place] == len({*clusters[inside & (change > 0)].tolist()})
    single = Units(None, 60)
    assert single.squares_outside(table, change) == pytest.approx(
        [(change[~slices[:, place]] ** 2).sum() for place in range(4)]
    )
    assert (single.in_units(change[:4], table, change > 0) == change[:4]).all()


def test_the_same_damage_everywhere_in_whole_groups_concentrates_nowhere() -> None:
    """A fifth of the groups is spoiled, slices are of whole groups. The level is .05.

    With single prompts the test takes chance for a concentration in most of the runs.
    """
    runs, found = 60, {"groups": 0, "prompts": 0}
    random = numpy.random.default_rng(3)
    table = as_table(
        numpy.stack([one == CLUSTERS % 8 for one in range(8)], axis=1).astype(float), N
    )
    for seed in range(runs):
        before = (random.random(N) < 0.8).astype(float)
        after = before * (random.random(GROUPS) >= 0.2)[CLUSTERS]
        values = numpy.stack([after, before], axis=1)
        for how, clusters in (("groups", CLUSTERS), ("prompts", None)):
            p = reject_uniform_loss(
                values,
                before - after,
                table,
                0.0,
                numpy.random.default_rng(seed),
                draws=499,
                units=Units(clusters, N),
            )
            found[how] += p.min() <= 0.05
    assert found["groups"] <= 9  # more of 60 have a chance of .003 at .05
    assert found["prompts"] >= 20


def test_answers_of_whole_groups_are_in_a_slice_by_chance() -> None:
    """A fifth of the groups is lost, and a third is in a slice of answers. The level is .05.

    With single prompts, a fifth of these chances and more are proofs.
    """
    runs, found = 100, {"groups": 0, "prompts": 0}
    random, nowhere = numpy.random.default_rng(5), numpy.zeros(N, dtype=bool)
    for _ in range(runs):
        lost = (random.random(GROUPS) < 0.2)[CLUSTERS]
        wrong = ~lost & (random.random(GROUPS) < 0.3)[CLUSTERS]
        after = (random.random(GROUPS) < 0.33)[CLUSTERS]
        for how, clusters in (("groups", CLUSTERS), ("prompts", None)):
            p = _compare_answers(lost, wrong, nowhere, after, Units(clusters, N))
            found[how] += p <= 0.05
    assert found["groups"] <= 11  # more of 100 have a chance of .004 at .05
    assert found["prompts"] >= 15
