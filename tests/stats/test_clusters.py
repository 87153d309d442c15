"""Test that prompts which share a passage count as one unit."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.stats.clusters import (
    cluster_keys,
    design_effect,
    design_effect_of_runs,
    effective_size,
    number_keys,
    two_sided_p,
)
from serve_eval.stats.drop import drop_test
from serve_eval.stats.largest_statistic import Units, as_table
from serve_eval.stats.losses import compute_permuted_p, reject_uniform_loss
from serve_eval.stats.pairs import pair
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.stats.slices import (
    _compare_answers,
    find_answer_slice,
    find_paired_slice,
    find_unpaired_slice,
)


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        ([], None),
        (["", "", ""], None),
        (["a", "b", ""], None),
        (["a", "", "a", ""], ["a", 1, "a", 3]),
        (["a", "a", "b"], ["a", "a", "b"]),
    ],
)
def test_prompts_without_a_name_are_alone_and_names_that_nobody_shares_are_none(names, keys):
    assert cluster_keys(names) == keys


@given(st.integers(0, 30), st.integers(0, 30))
def test_independent_prompts_give_mcnemars_p(down, up):
    signs = [-1] * down + [1] * up
    assert two_sided_p(signs, [""] * len(signs)) == mcnemar(down, up).p_exact_two_sided
    # Clusters of one changed prompt each beside one of two whose changes cancel.
    names = [f"{i}" for i in range(len(signs))] + ["both", "both"]
    assert two_sided_p([*signs, -1, 1], names) == pytest.approx(mcnemar(down, up).p_exact_two_sided)


def test_a_cluster_counts_once_by_its_net_change():
    signs = [-1] * 12
    assert two_sided_p(signs, [""] * 12) == 2.0 * 0.5**12
    assert two_sided_p(signs, ["a"] * 6 + ["b"] * 6) == pytest.approx(0.5)
    assert two_sided_p(signs, ["a"] * 12) == 1.0
    with pytest.raises(ValueError, match="argument 2"):
        two_sided_p(signs, ["a"] * 11)


def test_the_runs_of_a_cluster_are_exchanged_as_a_whole():
    """The candidate, the worst of three runs on each prompt, is drawn there by one in three."""
    alone, grouped = (
        pair([[1.0] * 12] * 2, [[0.0] * 12], lo=0.0, hi=1.0, higher_is_better=True, clusters=groups)
        for groups in (None, [i // 3 for i in range(12)])
    )
    assert drop_test(alone, "exchange").p_exact == pytest.approx(3.0**-12)
    assert drop_test(grouped, "exchange").p_exact == pytest.approx(3.0**-4)


@pytest.mark.parametrize(("m", "r"), [(5, 1.0), (20, 1.0), (10, 0.5), (10, 0.0)])
def test_the_design_effect_is_that_of_kish(m, r):
    random, groups = numpy.random.default_rng(1), 2000
    shared = numpy.sqrt(r) * random.standard_normal((groups, 1))
    values = (shared + numpy.sqrt(1.0 - r) * random.standard_normal((groups, m))).ravel()
    codes = numpy.repeat(numpy.arange(groups), m)
    assert design_effect(values, codes) == pytest.approx(1.0 + (m - 1) * r, rel=0.1)
    assert effective_size(values, codes) == pytest.approx(groups * m / (1 + (m - 1) * r), rel=0.1)


def test_without_clusters_or_spread_there_is_no_effect():
    codes = numpy.array([0, 0, 1, 1])
    assert design_effect([1.0, 0.0, 1.0, 0.0], None) == 1.0
    assert design_effect([1.0] * 4, codes) == 1.0
    assert design_effect([1.0, 0.0, 1.0, 0.0], codes) == 1.0  # never a gain
    assert effective_size([1.0, 0.0, 1.0, 0.0], None) == 4.0


def test_few_clusters_make_the_effective_size_small():
    found = effective_size([1.0, 0.0] * 6, number_keys("aaaabbbbcccc"))
    assert found == pytest.approx(12 * (2.2009852 / 4.3026527) ** 2, rel=1e-6)


# -------------------------------------------------------------------------------------------------
# slices

PROMPTS, PASSAGE = 200, 10
PASSAGES = numpy.arange(PROMPTS) // PASSAGE
INSIDE = (numpy.arange(PROMPTS) < 30)[:, None].astype(float)
"""Three whole passages."""


def _lose(count):
    return [1.0] * PROMPTS, [0.0] * count + [1.0] * (PROMPTS - count)


def test_three_lost_passages_are_no_slice():
    before, after = _lose(30)
    alone = find_paired_slice(before, after, INSIDE, level=0.0015)
    assert alone.lost == 30
    assert find_paired_slice(before, after, INSIDE, level=0.0015, clusters=PASSAGES) is None


def test_twelve_of_twenty_lost_passages_are_a_slice():
    before, after = _lose(120)
    inside = (numpy.arange(PROMPTS) < 120)[:, None].astype(float)
    found = find_paired_slice(before, after, inside, level=0.0015, clusters=PASSAGES)
    assert (found.lost, found.all_lost) == (120, 120)


def test_lost_passages_without_a_reference_are_permuted_as_a_whole():
    lost = numpy.arange(PROMPTS) < 30
    strata = [0] * PROMPTS
    alone = find_unpaired_slice(lost, INSIDE, strata, level=0.0015)
    assert alone is not None
    assert find_unpaired_slice(lost, INSIDE, strata, level=0.0015, clusters=PASSAGES) is None


def test_the_p_of_whole_passages_is_their_share_of_all_choices():
    # One of twenty passages is lost, and the slice is that passage: one choice of twenty.
    lost = (PASSAGES == 3).astype(float)
    random = numpy.random.default_rng(1)
    table = as_table(lost[:, None], PROMPTS)
    codes = numpy.zeros(PROMPTS, dtype=numpy.int64)
    p, _, _ = compute_permuted_p(lost, table, codes, 2999, random, PASSAGES)
    assert p[0] == pytest.approx(1 / 20, abs=0.015)


@pytest.mark.parametrize("size", [1, 5, 20])
def test_runs_whose_groups_move_as_a_whole_have_their_size_as_design_effect(size):
    random = numpy.random.default_rng(size)
    runs = numpy.repeat((random.random((3, 60)) < 0.7).astype(float), size, axis=1)
    clusters = numpy.repeat(numpy.arange(60), size)
    assert design_effect_of_runs(runs, clusters) == pytest.approx(size)
    assert design_effect_of_runs(runs[:1].repeat(2, axis=0), clusters) == 1.0


def test_runs_of_independent_prompts_have_a_design_effect_near_one_though_groups_are_hard():
    """Their values differ by passage, which the effect of single scores takes for dependence."""
    random = numpy.random.default_rng(2)
    clusters = numpy.repeat(numpy.arange(300), 10)
    chances = random.random(300)[clusters]
    runs = (random.random((2, 3000)) < chances).astype(float)
    assert design_effect_of_runs(runs, clusters) < 1.2
    assert design_effect(runs[0], clusters) > 3.0


GROUPS, SIZE = 100, 5
CLUSTERS = numpy.arange(GROUPS * SIZE) // SIZE
N = GROUPS * SIZE


def _of(groups):
    """Return True for the prompts of the first groups."""
    return groups > CLUSTERS


def _table(*slices):
    return numpy.stack(slices, axis=1)


@pytest.mark.parametrize(("lost", "named"), [(4, False), (5, False), (6, True)])
def test_a_slice_of_few_lost_groups_is_not_named_however_many_prompts_they_have(lost, named):
    """Four groups are 20 prompts, and the test of whole groups has a p below the level."""
    bad, table = _of(lost), _table(_of(8), ~_of(8))
    found = find_unpaired_slice(bad, table, numpy.zeros(N), level=0.01, clusters=CLUSTERS)
    assert (found is not None) is named
    pairs = find_paired_slice(numpy.ones(N), ~bad, table, level=0.07, clusters=CLUSTERS)
    assert (pairs is not None) is named


@pytest.mark.parametrize(("lost", "named"), [(4, False), (8, True)])
def test_a_slice_of_answers_needs_as_many_groups(lost, named):
    before, bad = (CLUSTERS < 60).astype(float), _of(lost)
    short = numpy.zeros(N, dtype=bool)
    sides = _table(short, short), _table(_of(8), ~_of(8))
    after = before * ~bad
    found = find_answer_slice(before, after, sides, level=0.07, clusters=CLUSTERS)
    assert (found is not None) is named
    assert find_answer_slice(before, after, sides, level=0.07) is not None


@pytest.mark.parametrize(("inside", "named"), [(7, False), (8, True)])
def test_a_slice_has_eight_groups_inside_and_outside(inside, named):
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


def test_parts_of_groups_are_inside_and_outside():
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
def test_units_agree_with_plain_counts(seed):
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


def test_the_same_damage_everywhere_in_whole_groups_concentrates_nowhere():
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


def test_answers_of_whole_groups_are_in_a_slice_by_chance():
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
