"""The prompts of a page are bounded; every kind of outcome keeps a share, and chance decides."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.report.page.chosen_rows import (
    FELL,
    LEAST_SHARE,
    ROSE,
    SAME,
    TaskRows,
    choose_rows,
    compare_values,
    join_arms,
    share_evenly,
)
from serve_eval.report.samples.sample_index import CATEGORIES, RowTable, order_by_chance


def _rows(groups: list[int], first: int = 0) -> TaskRows:
    keys = np.arange(first, first + len(groups))
    order = np.array([order_by_chance(f"q-{key}") for key in keys], np.uint32)
    group = np.array(groups, np.int64)
    return TaskRows(keys=keys, order=order, group=group, sides={}, answers=len(groups))


@given(st.lists(st.integers(0, 9), max_size=300), st.integers(0, 200))
def test_each_group_keeps_a_tenth_and_the_first_groups_get_the_rest(
    groups: list[int], most: int
) -> None:
    [chosen] = choose_rows([_rows(groups)], most)
    if len(groups) <= most:
        assert chosen is None
        return
    assert chosen is not None
    assert len(chosen) == len(set(chosen.tolist())) == most
    there, taken = Counter(groups), Counter(groups[key] for key in chosen.tolist())
    for group, n in there.items():
        assert taken[group] >= min(n, most // LEAST_SHARE)
    first = min(there)
    above = {group: n for group, n in taken.items() if n > most // LEAST_SHARE}
    if taken[first] < there[first]:
        assert set(above) <= {first}


def test_chance_takes_the_same_prompts_each_time_and_from_everywhere() -> None:
    [once], [again] = (choose_rows([_rows([9] * 10_000)], 1000) for _ in range(2))
    assert once is not None
    assert again is not None
    assert np.array_equal(once, again)
    thirds = Counter((once // 3334).tolist())
    assert all(250 < n < 420 for n in thirds.values())


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(0, 200))
def test_the_places_are_shared_evenly_among_tasks(wanted: list[int], most: int) -> None:
    shares = share_evenly(wanted, most)
    assert sum(shares) == min(most, sum(wanted))
    for share, want in zip(shares, wanted, strict=True):
        assert share <= want
        if share < want:
            assert share + 1 >= max(shares)


def test_several_tasks_are_bounded_together() -> None:
    tasks = [_rows([9] * n, first) for n, first in ((30, 0), (500, 100), (900, 1000))]
    few, *chosen = choose_rows(tasks, 130)
    assert few is None
    assert [len(one) for one in chosen if one is not None] == [50, 50]


def test_of_repeated_prompts_fewer_are_shown() -> None:
    task = _rows([9] * 100)
    repeated = TaskRows(
        keys=task.keys, order=task.order, group=task.group, sides={}, answers=16 * 100
    )
    [chosen] = choose_rows([repeated], 160)
    assert chosen is not None
    assert len(chosen) == 10


def _table(names: dict[int, tuple[str, float]]) -> RowTable:
    keys = np.array(sorted(names), np.int64)
    codes = np.array([CATEGORIES.index(names[key][0]) for key in sorted(names)], np.uint8)
    value = np.array([names[key][1] for key in sorted(names)])
    return RowTable(
        keys=keys, order=keys.astype(np.uint32), category=codes, first=codes, value=value
    )


@pytest.mark.parametrize(
    ("a", "b", "side", "earlier"),
    [
        (("right", 1.0), ("wrong", 0.0), ("right", "wrong"), ("wrong", "right")),
        (("right, but cut off", 1.0), ("failed", np.nan), ("right", "missing"), None),
        (("not scored", np.nan), ("unreadable", 0.0), ("missing", "wrong"), None),
        (("partly right", 0.7), ("partly right", 0.2), ("wrong", "wrong"), ("wrong", "wrong")),
    ],
)
def test_what_changed_between_two_arms_is_counted_and_comes_first(
    a: tuple[str, float],
    b: tuple[str, float],
    side: tuple[str, str],
    earlier: tuple[str, str] | None,
) -> None:
    same = ("right", 1.0)
    joined = join_arms(_table({1: same, 2: a}), _table({1: same, 2: b}), 2)
    assert joined.sides[side] == 1
    assert joined.sides["right", "right"] == 1
    assert sum(joined.sides.values()) == 2
    fell = bool(joined.group[1] < joined.group[0])
    assert fell == (earlier is not None)


def test_a_prompt_that_one_arm_lacks_is_missing_there() -> None:
    joined = join_arms(_table({1: ("right", 1.0)}), _table({2: ("wrong", 0.0)}), 1)
    assert joined.sides["right", "missing"] == joined.sides["missing", "wrong"] == 1


def test_changes_of_scores_have_codes() -> None:
    a, b = np.array([1.0, 0.0, 0.5, np.nan, 1.0]), np.array([0.0, 1.0, 0.5, 1.0, np.nan])
    assert compare_values(a, b).tolist() == [FELL, ROSE, SAME, 0, 0]
