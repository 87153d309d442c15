"""Test permutations of pairs and of prompts."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats import no_worse as stats_no_worse
from serve_eval.stats import permutation
from serve_eval.stats.no_worse import (
    LEAST_P,
    AnsweredPrompt,
    no_worse,
    no_worse_by_prompt,
    no_worse_in_blocks,
)
from serve_eval.stats.paired_t import paired_t
from serve_eval.stats.permutation import exchange_test, sign_flip_test
from serve_eval.stats.sign_tests import mcnemar

SCORES = st.sampled_from([0.0, 0.5, 1.0, 1 / 3])


def _by_hand(runs, candidate_runs):
    """Return P(sum <= observed) and the mid-p by enumeration.

    Each prompt's runs are assigned to the candidate in all ways.
    """
    columns = list(zip(*runs, strict=True))
    observed = math.fsum(value for column in columns for value in column[-candidate_runs:])
    below = at = count = 0
    for chosen in itertools.product(
        *(itertools.combinations(column, candidate_runs) for column in columns)
    ):
        total = math.fsum(value for one in chosen for value in one)
        count += 1
        at += abs(total - observed) < 1e-9
        below += total < observed - 1e-9
    return (below + at) / count, (below + at / 2) / count


@settings(max_examples=60)
@given(st.data(), st.integers(1, 3), st.integers(1, 2), st.integers(1, 4))
def test_it_equals_the_count_of_all_permutations(data, before, after, prompts):
    row = st.lists(SCORES, min_size=prompts, max_size=prompts)
    runs = data.draw(st.lists(row, min_size=before + after, max_size=before + after))
    test = exchange_test(runs, after)
    if all(len(set(column)) == 1 for column in zip(*runs, strict=True)):
        assert test.p_exact == test.p_mid == 1.0
    else:
        assert (test.p_exact, test.p_mid) == pytest.approx(_by_hand(runs, after))


@given(st.integers(0, 300), st.integers(0, 300))
def test_one_run_a_side_is_mcnemars_test(down, up):
    runs = numpy.ones((2, down + up + 5))
    runs[1, :down] = runs[0, down : down + up] = 0.0
    test, exact = exchange_test(runs), mcnemar(down, up)
    assert test.p_exact == pytest.approx(exact.p_exact, rel=1e-9)
    assert test.p_mid == pytest.approx(exact.p_mid, rel=1e-9)


def test_a_prompt_counts_by_how_often_it_was_right():
    """Use three reference runs and 4 prompts that only the candidate has wrong.

    Any of 4 answers is equally likely to be the wrong one.
    """
    runs = numpy.ones((4, 20))
    runs[3, :4] = 0.0
    assert exchange_test(runs).p_exact == pytest.approx(0.25**4)
    assert sign_flip_test(runs[3] - runs[:3].mean(axis=0)).p_exact == pytest.approx(0.5**4)


@pytest.mark.parametrize(
    ("before", "after"), [(1, 1), (3, 1), (3, 3), pytest.param(9, 2, marks=pytest.mark.slow)]
)
def test_sums_inversion_and_draws_agree(before, after):
    random_ = numpy.random.default_rng(7)
    runs = random_.beta(5, 8, 300) + random_.normal(0.0, 0.05, (before + after, 300))
    runs[-after:] -= 0.004
    units = runs - runs.min(axis=0)
    inverted = permutation._invert(units, after)
    assert inverted == pytest.approx(permutation._draw(units, after, 9_999, 0).p_mid, abs=0.015)
    rounded = numpy.round(runs, 2)
    steps = permutation._on_grid(rounded - rounded.min(axis=0))
    assert steps is not None
    summed = permutation._sum_permutations(steps, after)
    assert summed.p_mid == pytest.approx(
        permutation._draw(rounded, after, 9_999, 1).p_mid, abs=0.015
    )


def test_the_inversion_has_the_tail_of_the_exact_sum():
    """Scores are on a fine grid, for which both methods apply."""
    random_ = numpy.random.default_rng(3)
    runs = random_.integers(0, 40, (4, 250)).astype(float)
    for lower in (2.0, 4.0, 6.0):
        shifted = numpy.concatenate([runs[:3], runs[3:] - lower])
        units = shifted - shifted.min(axis=0)
        steps = permutation._on_grid(units)
        assert steps is not None
        summed = permutation._sum_permutations(steps, 1)
        assert permutation._invert(units, 1) == pytest.approx(summed.p_mid, rel=1e-3)


def test_many_prompts_agree_with_the_t_test():
    values = numpy.random.default_rng(5).normal(-0.1, 1.0, 400)
    assert sign_flip_test(values).p_mid == pytest.approx(paired_t(values).p, abs=2e-3)


def test_the_shared_vectors_of_sign_flips_hold_to_their_tolerance(vectors):
    for vector in vectors("signflip"):
        p = sign_flip_test(vector["inputs"]["differences"]).p_exact
        assert p == pytest.approx(vector["expected"]["p"], abs=vector["tolerance"]), vector["id"]


def test_a_few_differences_of_all_sizes_are_counted():
    mixed = [-2.5, -1.0, 0.0, 0.5, -3.0, 1.5, -0.25, 0.0, -4.0, 2.0]
    assert sign_flip_test(mixed).p_exact == pytest.approx(0.16015625, abs=1e-9)
    assert sign_flip_test([-1] * 6 + [1] + [0] * 5).p_exact == pytest.approx(0.0625, abs=1e-9)


def test_clusters_are_permuted_as_a_whole_and_weights_scale():
    together = sign_flip_test([-1.0, -1.0, -2.0, -3.0, 0.5], clusters=numpy.array([0, 0, 1, 1, 2]))
    assert together == sign_flip_test([-2.0, -5.0, 0.5])
    assert sign_flip_test([-1.0, 1.0, -1.0], [3.0, 1.0, 2.0]) == sign_flip_test([-3.0, 1.0, -2.0])


@pytest.mark.parametrize(
    "draw", [lambda r: r.random(), lambda r: r.choice([0.0, 0.5, 1.0])], ids=["fine", "graded"]
)
def test_neither_the_order_of_the_prompts_nor_that_of_the_reference_runs_matters(
    draw,
):
    random_ = random.Random(1)
    runs = [[draw(random_) for _ in range(12)] for _ in range(3)]
    places = random_.sample(range(12), 12)
    shuffled = [[run[i] for i in places] for run in (runs[1], runs[0], runs[2])]
    assert exchange_test(runs) == exchange_test(shuffled)


def test_far_tails_stay_probabilities():
    random_ = numpy.random.default_rng(2)
    before = random_.random(2000)
    worse = exchange_test(numpy.stack([before, before - random_.random(2000) / 5]))
    better = exchange_test(numpy.stack([before, before + random_.random(2000) / 5]))
    assert 0.0 < worse.p_mid <= 1e-9
    assert better.p_mid == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]],), "one run on each side"),
        (([[], []],), "at least one prompt"),
        (([[1.0], [math.nan]],), "finite"),
        (([[1.0], [0.0]], 1, [math.inf]), "weights must be finite"),
        (([[1.0], [0.0]], 2), "one run on each side"),
    ],
)
def test_what_cannot_be_permuted_is_refused(arguments, message):
    with pytest.raises(ServeEvalError, match=message) as caught:
        exchange_test(*arguments)
    assert caught.value.hint


WORKERS = ("g0", "g1", "g2")


def enumerated(prompts, worker):
    """Return the same probability by all ways to choose prompts, and a worker of each."""
    classes = {}
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
        mixed = Counter()
        for before, chance in total.items():
            for way in ways:
                mixed[before + way] += chance / len(ways)
        total = mixed
    return Fraction(sum(chance for value, chance in total.items() if value >= seen))


@st.composite
def answered(draw):
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
def test_the_probability_is_that_of_all_permutations(prompts):
    for worker in WORKERS:
        known = float(enumerated(prompts, worker))
        assert no_worse_by_prompt(prompts, worker) == pytest.approx(known, abs=1e-9)


def _once(rng, n):
    return [(WORKERS[rng.integers(3)], bool(rng.random() < 0.3)) for _ in range(n)]


@pytest.mark.parametrize("n", [20, 300, 3000])
def test_prompts_that_were_answered_once_are_those_of_fishers_test(n):
    dealt = _once(numpy.random.default_rng(n), n)
    own = [bad for name, bad in dealt if name == "g1"]
    others = [bad for name, bad in dealt if name != "g1"]
    known = no_worse([(len(own), sum(own), len(others), sum(others))])
    found = no_worse_by_prompt([AnsweredPrompt(None, {name: [bad]}) for name, bad in dealt], "g1")
    assert found == pytest.approx(known, rel=1e-6)


@pytest.mark.parametrize("right", [0, 1])
def test_the_largest_sums_have_their_chance_where_almost_all_answers_are_bad(right):
    own, others = 200, 200
    prompts = [AnsweredPrompt(None, {"g1": [place >= right]}) for place in range(own)]
    prompts += [AnsweredPrompt(None, {"g0": [place >= 18 - right]}) for place in range(others)]
    known = no_worse([(own, own - right, others, others - 18 + right)])
    assert no_worse_by_prompt(prompts, "g1") == pytest.approx(known, rel=1e-6)


def test_prompts_that_all_workers_answered_are_blocks():
    rng = numpy.random.default_rng(1)
    prompts = [
        AnsweredPrompt(None, {name: (rng.random(4) < 0.4).tolist() for name in WORKERS})
        for _ in range(60)
    ]
    blocks = [[sum(one.bad[name]) for name in ("g1", "g0", "g2")] for one in prompts]
    assert no_worse_by_prompt(prompts, "g1") == pytest.approx(no_worse_in_blocks(blocks), rel=1e-9)


def test_equal_repeats_change_nothing():
    """Fails if answers are permuted: eight equal answers would be eight pieces of evidence."""
    dealt = _once(numpy.random.default_rng(2), 40)
    once, often = (
        no_worse_by_prompt(
            [AnsweredPrompt(None, {name: [bad] * repeats}) for name, bad in dealt], "g1"
        )
        for repeats in (1, 8)
    )
    assert often == pytest.approx(once, rel=1e-9)


def test_a_small_p_is_no_smaller_than_the_transform_is_precise():
    prompts = [AnsweredPrompt(None, {WORKERS[i % 2]: [i % 2 == 1] * 4}) for i in range(400)]
    assert no_worse_by_prompt(prompts, "g1") == LEAST_P
    assert no_worse_by_prompt(prompts, "g0") == pytest.approx(1.0)


def test_nothing_to_compare_with_gives_one():
    assert no_worse_by_prompt([], "g0") == 1.0
    assert no_worse_by_prompt([AnsweredPrompt(None, {"g0": [True]})] * 9, "g0") == 1.0
    assert no_worse_by_prompt([AnsweredPrompt(None, {"g1": [True]})] * 9, "g0") == 1.0
    alone = [AnsweredPrompt(name, {name: [name == "g0"] * 3}) for name in WORKERS for _ in range(9)]
    assert no_worse_by_prompt(alone, "g0") == 1.0


def test_a_shortcut_for_many_prompts_is_near_the_exact_value(
    monkeypatch,
):
    rng = numpy.random.default_rng(3)
    chance = rng.random(800)
    prompts = [
        AnsweredPrompt(None, {WORKERS[rng.integers(3)]: (rng.random(8) < p).tolist()})
        for p in chance
    ]
    monkeypatch.setattr(stats_no_worse, "CHEAP", 10**12)
    exact = [no_worse_by_prompt(prompts, name) for name in WORKERS]
    monkeypatch.setattr(stats_no_worse, "CHEAP", 0)
    assert [no_worse_by_prompt(prompts, name) for name in WORKERS] == pytest.approx(exact, abs=0.01)
