from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.evaluation.engine.lane import arrange, arrange_groups
from serve_eval.schema import Message, Order, Prompt, Sample

ORDERS: tuple[Order, ...] = ("natural", "random", "prefix", "longest")


def _samples(prompts: Sequence[Prompt], targets: Sequence[str] | None = None) -> list[Sample]:
    targets = targets or ["A"] * len(prompts)
    return [
        Sample(id=str(i), prompt=p, target=t)
        for i, (p, t) in enumerate(zip(prompts, targets, strict=True))
    ]


@given(st.lists(st.text(max_size=3), max_size=20), st.sampled_from(ORDERS))
def test_every_order_asks_each_sample_once(prompts: list[str], order: Order) -> None:
    samples = _samples(prompts)
    chosen = [i for i in range(len(samples)) if i % 3]
    assert sorted(arrange(samples, chosen, order, "s")) == chosen


def test_natural_is_the_protocols_own() -> None:
    assert list(arrange(_samples("cab"), [2, 0, 1], "natural", "s")) == [2, 0, 1]


def test_random_is_the_same_for_the_same_seed() -> None:
    samples = _samples([str(i) for i in range(100)])
    one, two, three = (
        list(arrange(samples, range(100), "random", seed)) for seed in ("0", "0", "1")
    )
    assert one == two != three
    assert one != sorted(one)


def test_samples_that_share_a_prefix_stand_together() -> None:
    prompts = ["law: q1", "art: q1", "law: q2", "art: q2"]
    assert [prompts[i] for i in arrange(_samples(prompts), range(4), "prefix", "s")] == sorted(
        prompts
    )
    chats: list[Prompt] = [
        (Message(role="system", content=p[:3]), Message(role="user", content=p)) for p in prompts
    ]
    assert list(arrange(_samples(chats), range(4), "prefix", "s")) == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("targets", "first"), [(["a", "aaa", "aa"], [1, 2, 0]), (["b", "a", "c"], [0, 1, 2])]
)
def test_the_longest_expected_answer_comes_first(targets: list[str], first: list[int]) -> None:
    assert list(arrange(_samples("xyz", targets), range(3), "longest", "s")) == first


def test_an_order_that_is_changed_is_nobody_elses() -> None:
    samples = _samples([str(i) for i in range(100)])
    one = arrange(samples, range(100), "random", "0")
    before = list(one)
    one.reverse()
    assert list(arrange(samples, range(100), "random", "0")) == before


@given(st.lists(st.integers(0, 5), max_size=30))
def test_groups_follow_each_other_whole_in_the_protocols_order(keys: list[int]) -> None:
    order, sizes = arrange_groups(keys, "s")
    assert sorted(order) == list(range(len(keys)))
    place, seen = 0, []
    for size in sizes:
        group = list(order[place : place + size])
        assert group == [i for i, key in enumerate(keys) if key == keys[group[0]]]
        seen.append(keys[group[0]])
        place += size
    assert len(seen) == len(set(seen)) == len(set(keys))


def test_the_order_of_groups_is_drawn_by_the_seed() -> None:
    keys = [i // 3 for i in range(300)]
    one, two, three = (arrange_groups(keys, seed)[0] for seed in ("0", "0", "1"))
    assert one == two != three
    assert list(one) != sorted(one)
