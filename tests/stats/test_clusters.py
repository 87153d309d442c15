"""Prompts that share a passage are one unit of every test."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
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
from serve_eval.stats.largest_statistic import as_table
from serve_eval.stats.losses import compute_permuted_p
from serve_eval.stats.pairs import pair
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.stats.slices import find_paired_slice, find_unpaired_slice


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
def test_prompts_without_a_name_are_alone_and_names_that_nobody_shares_are_none(
    names: list[str], keys: list[object] | None
) -> None:
    assert cluster_keys(names) == keys


@given(st.integers(0, 30), st.integers(0, 30))
def test_independent_prompts_give_mcnemars_p(down: int, up: int) -> None:
    signs = [-1] * down + [1] * up
    assert two_sided_p(signs, [""] * len(signs)) == mcnemar(down, up).p_exact_two_sided
    # Clusters of one changed prompt each beside one of two whose changes cancel.
    names = [f"{i}" for i in range(len(signs))] + ["both", "both"]
    assert two_sided_p([*signs, -1, 1], names) == pytest.approx(mcnemar(down, up).p_exact_two_sided)


def test_a_cluster_counts_once_by_its_net_change() -> None:
    signs = [-1] * 12
    assert two_sided_p(signs, [""] * 12) == 2.0 * 0.5**12
    assert two_sided_p(signs, ["a"] * 6 + ["b"] * 6) == pytest.approx(0.5)
    assert two_sided_p(signs, ["a"] * 12) == 1.0
    with pytest.raises(ValueError, match="argument 2"):
        two_sided_p(signs, ["a"] * 11)


def test_the_runs_of_a_cluster_are_exchanged_as_a_whole() -> None:
    """The candidate, the worst of three runs on each prompt, is drawn there by one in three."""
    alone, grouped = (
        pair([[1.0] * 12] * 2, [[0.0] * 12], lo=0.0, hi=1.0, higher_is_better=True, clusters=groups)
        for groups in (None, [i // 3 for i in range(12)])
    )
    assert drop_test(alone, "exchange").p_exact == pytest.approx(3.0**-12)
    assert drop_test(grouped, "exchange").p_exact == pytest.approx(3.0**-4)


@pytest.mark.parametrize(("m", "r"), [(5, 1.0), (20, 1.0), (10, 0.5), (10, 0.0)])
def test_the_design_effect_is_that_of_kish(m: int, r: float) -> None:
    random, groups = numpy.random.default_rng(1), 2000
    shared = numpy.sqrt(r) * random.standard_normal((groups, 1))
    values = (shared + numpy.sqrt(1.0 - r) * random.standard_normal((groups, m))).ravel()
    codes = numpy.repeat(numpy.arange(groups), m)
    assert design_effect(values, codes) == pytest.approx(1.0 + (m - 1) * r, rel=0.1)
    assert effective_size(values, codes) == pytest.approx(groups * m / (1 + (m - 1) * r), rel=0.1)


def test_without_clusters_or_spread_there_is_no_effect() -> None:
    codes = numpy.array([0, 0, 1, 1])
    assert design_effect([1.0, 0.0, 1.0, 0.0], None) == 1.0
    assert design_effect([1.0] * 4, codes) == 1.0
    assert design_effect([1.0, 0.0, 1.0, 0.0], codes) == 1.0  # never a gain
    assert effective_size([1.0, 0.0, 1.0, 0.0], None) == 4.0


def test_few_clusters_make_the_effective_size_small() -> None:
    found = effective_size([1.0, 0.0] * 6, number_keys("aaaabbbbcccc"))
    assert found == pytest.approx(12 * (2.2009852 / 4.3026527) ** 2, rel=1e-6)


# -------------------------------------------------------------------------------------------------
# slices

PROMPTS, PASSAGE = 200, 10
PASSAGES = numpy.arange(PROMPTS) // PASSAGE
INSIDE = (numpy.arange(PROMPTS) < 30)[:, None].astype(float)
"""Three whole passages."""


def _lose(count: int) -> tuple[list[float], list[float]]:
    return [1.0] * PROMPTS, [0.0] * count + [1.0] * (PROMPTS - count)


def test_three_lost_passages_are_no_slice() -> None:
    before, after = _lose(30)
    alone = find_paired_slice(before, after, INSIDE, level=0.0015)
    assert alone is not None
    assert alone.lost == 30
    assert find_paired_slice(before, after, INSIDE, level=0.0015, clusters=PASSAGES) is None


def test_twelve_of_twenty_lost_passages_are_a_slice() -> None:
    before, after = _lose(120)
    inside = (numpy.arange(PROMPTS) < 120)[:, None].astype(float)
    found = find_paired_slice(before, after, inside, level=0.0015, clusters=PASSAGES)
    assert found is not None
    assert (found.lost, found.all_lost) == (120, 120)


def test_lost_passages_without_a_reference_are_permuted_as_a_whole() -> None:
    lost = numpy.arange(PROMPTS) < 30
    strata = [0] * PROMPTS
    alone = find_unpaired_slice(lost, INSIDE, strata, level=0.0015)
    assert alone is not None
    assert find_unpaired_slice(lost, INSIDE, strata, level=0.0015, clusters=PASSAGES) is None


def test_the_p_of_whole_passages_is_their_share_of_all_choices() -> None:
    # One of twenty passages is lost, and the slice is that passage: one choice of twenty.
    lost = (PASSAGES == 3).astype(float)
    random = numpy.random.default_rng(1)
    table = as_table(lost[:, None], PROMPTS)
    codes = numpy.zeros(PROMPTS, dtype=numpy.int64)
    p, _, _ = compute_permuted_p(lost, table, codes, 2999, random, PASSAGES)
    assert p[0] == pytest.approx(1 / 20, abs=0.015)


@pytest.mark.parametrize("size", [1, 5, 20])
def test_runs_whose_groups_move_as_a_whole_have_their_size_as_design_effect(size: int) -> None:
    random = numpy.random.default_rng(size)
    runs = numpy.repeat((random.random((3, 60)) < 0.7).astype(float), size, axis=1)
    clusters = numpy.repeat(numpy.arange(60), size)
    assert design_effect_of_runs(runs, clusters) == pytest.approx(size)
    assert design_effect_of_runs(runs[:1].repeat(2, axis=0), clusters) == 1.0


def test_runs_of_independent_prompts_have_a_design_effect_near_one_though_groups_are_hard() -> None:
    """Their values differ by passage, which the effect of single scores takes for dependence."""
    random = numpy.random.default_rng(2)
    clusters = numpy.repeat(numpy.arange(300), 10)
    chances = random.random(300)[clusters]
    runs = (random.random((2, 3000)) < chances).astype(float)
    assert design_effect_of_runs(runs, clusters) < 1.2
    assert design_effect(runs[0], clusters) > 3.0
