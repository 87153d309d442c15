"""Test the permutation of prompts against enumeration and the hypergeometric distribution."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.stats import no_worse as prompt_permutation
from serve_eval.stats.no_worse import (
    LEAST_P,
    AnsweredPrompt,
    no_worse,
    no_worse_by_prompt,
    no_worse_in_blocks,
)

WORKERS = ("g0", "g1", "g2")


def enumerated(prompts: list[AnsweredPrompt], worker: str) -> Fraction:
    """Return the same probability by all ways to choose prompts, and a worker of each."""
    classes: dict[object, list[tuple[list[int], int | None]]] = {}
    for one in prompts:
        each = min(map(len, one.bad.values()))
        counts = {name: sum(flags[:each]) for name, flags in one.bad.items()}
        key = one.group, len(counts), each
        classes.setdefault(key, []).append(([*counts.values()], counts.get(worker)))
    total, seen = Counter({0: Fraction(1)}), 0
    for found in classes.values():
        drawn = [own for _, own in found if own is not None]
        seen += sum(drawn)
        ways = [
            sum(values)
            for chosen in itertools.combinations([cells for cells, _ in found], len(drawn))
            for values in itertools.product(*chosen)
        ]
        mixed: Counter[int] = Counter()
        for before, chance in total.items():
            for way in ways:
                mixed[before + way] += chance / len(ways)
        total = mixed
    return Fraction(sum(chance for value, chance in total.items() if value >= seen))


@st.composite
def answered(draw: st.DrawFn) -> list[AnsweredPrompt]:
    return [
        AnsweredPrompt(
            draw(st.sampled_from(["easy", "hard"])),
            {
                name: draw(st.lists(st.booleans(), min_size=1, max_size=3))
                for name in draw(st.sets(st.sampled_from(WORKERS), min_size=1))
            },
        )
        for _ in range(draw(st.integers(1, 7)))
    ]


@settings(max_examples=150, deadline=None)
@given(answered())
def test_the_probability_is_that_of_all_permutations(prompts: list[AnsweredPrompt]) -> None:
    for worker in WORKERS:
        known = float(enumerated(prompts, worker))
        assert no_worse_by_prompt(prompts, worker) == pytest.approx(known, abs=1e-9)


def _once(rng: numpy.random.Generator, n: int) -> list[tuple[str, bool]]:
    return [(WORKERS[rng.integers(3)], bool(rng.random() < 0.3)) for _ in range(n)]


@pytest.mark.parametrize("n", [20, 300, 3000])
def test_prompts_that_were_answered_once_are_those_of_fishers_test(n: int) -> None:
    dealt = _once(numpy.random.default_rng(n), n)
    own = [bad for name, bad in dealt if name == "g1"]
    others = [bad for name, bad in dealt if name != "g1"]
    known = no_worse([(len(own), sum(own), len(others), sum(others))])
    found = no_worse_by_prompt([AnsweredPrompt(None, {name: [bad]}) for name, bad in dealt], "g1")
    assert found == pytest.approx(known, rel=1e-6)


@pytest.mark.parametrize("right", [0, 1])
def test_the_largest_sums_have_their_chance_where_almost_all_answers_are_bad(right: int) -> None:
    own, others = 200, 200
    prompts = [AnsweredPrompt(None, {"g1": [place >= right]}) for place in range(own)]
    prompts += [AnsweredPrompt(None, {"g0": [place >= 18 - right]}) for place in range(others)]
    known = no_worse([(own, own - right, others, others - 18 + right)])
    assert no_worse_by_prompt(prompts, "g1") == pytest.approx(known, rel=1e-6)


def test_prompts_that_all_workers_answered_are_blocks() -> None:
    rng = numpy.random.default_rng(1)
    prompts = [
        AnsweredPrompt(None, {name: (rng.random(4) < 0.4).tolist() for name in WORKERS})
        for _ in range(60)
    ]
    blocks = [[sum(one.bad[name]) for name in ("g1", "g0", "g2")] for one in prompts]
    assert no_worse_by_prompt(prompts, "g1") == pytest.approx(no_worse_in_blocks(blocks), rel=1e-9)


def test_equal_repeats_change_nothing() -> None:
    """Fails if answers are permuted: eight equal answers would be eight pieces of evidence."""
    dealt = _once(numpy.random.default_rng(2), 40)
    once, often = (
        no_worse_by_prompt(
            [AnsweredPrompt(None, {name: [bad] * repeats}) for name, bad in dealt], "g1"
        )
        for repeats in (1, 8)
    )
    assert often == pytest.approx(once, rel=1e-9)


def test_a_small_p_is_no_smaller_than_the_transform_is_precise() -> None:
    prompts = [AnsweredPrompt(None, {WORKERS[i % 2]: [i % 2 == 1] * 4}) for i in range(400)]
    assert no_worse_by_prompt(prompts, "g1") == LEAST_P
    assert no_worse_by_prompt(prompts, "g0") == pytest.approx(1.0)


def test_nothing_to_compare_with_gives_one() -> None:
    assert no_worse_by_prompt([], "g0") == 1.0
    assert no_worse_by_prompt([AnsweredPrompt(None, {"g0": [True]})] * 9, "g0") == 1.0
    assert no_worse_by_prompt([AnsweredPrompt(None, {"g1": [True]})] * 9, "g0") == 1.0
    alone = [AnsweredPrompt(name, {name: [name == "g0"] * 3}) for name in WORKERS for _ in range(9)]
    assert no_worse_by_prompt(alone, "g0") == 1.0


def test_a_shortcut_for_many_prompts_is_near_the_exact_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = numpy.random.default_rng(3)
    chance = rng.random(800)
    prompts = [
        AnsweredPrompt(None, {WORKERS[rng.integers(3)]: (rng.random(8) < p).tolist()})
        for p in chance
    ]
    monkeypatch.setattr(prompt_permutation, "CHEAP", 10**12)
    exact = [no_worse_by_prompt(prompts, name) for name in WORKERS]
    monkeypatch.setattr(prompt_permutation, "CHEAP", 0)
    assert [no_worse_by_prompt(prompts, name) for name in WORKERS] == pytest.approx(exact, abs=0.01)
