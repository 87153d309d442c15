"""The tests of slices: exact under exchange, blind to a loss that is the same everywhere."""

import tracemalloc

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.largest_statistic import Units, adjust, as_table, choose
from serve_eval.stats.losses import MOST_STRATA, _stratify, is_like_another, reject_uniform_loss
from serve_eval.stats.slices import find_answer_slice, find_paired_slice, find_unpaired_slice

N = 120


def first(size, n=N):
    """Return a slice of the first prompts."""
    return numpy.arange(n) < size


def columns(*slices):
    return numpy.stack(slices, axis=1)


def test_a_slice_that_holds_all_losses_is_named_with_its_counts():
    after = numpy.ones(N)
    after[:15] = 0.0
    before = numpy.ones(N)
    before[100:103] = 0.0  # three prompts gain
    slices = columns(~first(60), first(60), first(20), first(40))
    found = find_paired_slice(before, after, slices, level=0.01)
    assert (found.place, found.lost, found.all_lost) == (2, 15, 15)
    assert (found.gained, found.all_gained) == (0, 3)
    # At least 2**-15 by exchange; 2,999 draws cannot show less than 1/3000.
    assert found.p == pytest.approx(1 / 3000)


@pytest.mark.parametrize(("lost", "named"), [(8, False), (14, True)])
def test_p_is_at_least_that_of_the_signs_inside(lost, named):
    """Eight losses have a p of 2**-8 = .0039, above the level of .0015."""
    after = numpy.ones(N)
    after[:lost] = 0.0
    found = find_paired_slice(numpy.ones(N), after, columns(first(20)), level=0.0015)
    assert (found is not None) is named


def test_a_uniform_loss_of_right_answers_is_the_test_of_two_proportions():
    """70 of 100 are lost inside and 60 of 100 outside: z is 1.48, and p .069."""
    before, inside = numpy.ones(200), first(100, 200)
    change = (numpy.arange(200) % 100 < numpy.where(inside, 70, 60)).astype(float)
    [p] = reject_uniform_loss(
        numpy.stack([before - change, before], axis=1),
        change,
        as_table(columns(inside).astype(float), 200),
        0.0,
        numpy.random.default_rng(0),
        draws=499,
        units=Units(None, 200),
    )
    assert p == pytest.approx(0.069, abs=0.03)


@pytest.mark.parametrize(("halves", "named"), [(9, False), (10, True)])
def test_a_slice_that_is_named_loses_five_prompts_or_more(halves, named):
    after = numpy.where(first(halves), 0.5, 1.0)
    found = find_paired_slice(numpy.ones(N), after, columns(first(20)), level=0.01)
    assert (found is not None) is named


def test_of_equally_strong_slices_the_first_is_named():
    after = numpy.ones(N)
    after[:20] = 0.0
    found = find_paired_slice(
        numpy.ones(N), after, columns(first(20), first(20), first(20) & first(30)), level=0.01
    )
    assert found.place == 0
    assert choose(numpy.array([9.6, 10.0]), numpy.array([True, True])) == 0
    assert choose(numpy.array([9.4, 10.0]), numpy.array([True, True])) == 1
    assert choose(numpy.array([9.6, 10.0]), numpy.array([False, False])) is None


def test_more_runs_of_the_reference_count():
    after = numpy.ones((1, N))
    after[0, :20] = 0.0
    before = numpy.ones((3, N))
    before[1, 60:70] = 0.0
    found = find_paired_slice(before, after, columns(first(60), first(20)), level=0.01)
    assert (found.place, found.lost) == (1, 20)


def test_of_unequal_numbers_of_runs_the_first_of_the_candidate_counts():
    after = numpy.ones((2, N))
    after[0, :20] = 0.0
    after[1, 70:] = 0.0
    before, table = numpy.ones((3, N)), columns(first(60), first(20))
    found = find_paired_slice(before, after, table, level=0.01)
    assert found == find_paired_slice(before, after[:1], table, level=0.01)


def test_a_loss_outside_that_is_larger_hides_a_slice():
    """All twenty are lost inside; twenty or forty-five of a hundred outside."""
    for end, named in ((40, True), (65, False)):
        after = numpy.ones(N)
        after[:end] = 0.0
        found = find_paired_slice(numpy.ones(N), after, columns(first(20)), level=0.01)
        assert (found is not None) is named


@pytest.mark.parametrize(("prompts", "size"), [(39, 20), (N, 7), (N, N - 7)])
def test_small_runs_and_slices_say_nothing(prompts, size):
    after = numpy.ones(prompts)
    after[:size] = 0.0
    table = columns(first(size, prompts))
    assert find_paired_slice(numpy.ones(prompts), after, table, level=0.05) is None
    assert find_unpaired_slice(after == 0.0, table, numpy.zeros(prompts), level=0.05) is None


@pytest.mark.parametrize(("size", "named"), [(107, True), (108, False)])
def test_a_slice_of_nine_tenths_of_the_prompts_is_no_slice(size, named):
    """Every lost answer is inside, and 12 or 13 prompts outside lose nothing."""
    after = numpy.where(first(size), 0.0, 1.0)
    found = find_unpaired_slice(after == 0.0, columns(first(size)), numpy.zeros(N), level=0.01)
    assert (found is not None) is named


def test_a_slice_in_which_only_the_reference_is_better_is_not_named():
    """Another model loses a third of the right answers everywhere; the reference is right here."""
    named = 0
    for seed in range(20):
        random = numpy.random.default_rng(seed)
        before = (first(60) | (random.random(N) < 0.2)).astype(float)
        after = (random.random(N) < 0.6).astype(float)
        named += find_paired_slice(before, after, columns(first(60)), level=0.0015) is not None
    assert named <= 1


@pytest.mark.parametrize(
    ("right", "kept", "wrong", "gained", "like"),
    [
        (90, 66, 10, 7, True),  # another model, right on 70 %
        (90, 60, 10, 1, False),  # a fault that spoils a third
        (84, 38, 16, 4, False),  # weights of three bits
        (90, 51, 10, 4, False),  # the same, of other prompts
        (98, 60, 4, 4, False),  # too few to tell
        (100, 50, 0, 0, False),
        (0, 0, 100, 30, True),
    ],
)
def test_another_model_gains_where_the_reference_is_wrong(right, kept, wrong, gained, like):
    before = [True] * right + [False] * wrong
    after = [i < kept for i in range(right)] + [i < gained for i in range(wrong)]
    assert is_like_another(before, after) is like
    assert is_like_another([float(x) for x in before], [float(x) for x in after]) is like


def test_prompts_of_many_scores_are_put_in_strata_of_about_one_size():
    scores = numpy.random.default_rng(3).permutation(90) / 90.0
    strata = _stratify(scores)
    sizes = numpy.bincount(strata)
    assert len(sizes) == MOST_STRATA
    assert max(sizes) - min(sizes) <= 2
    assert numpy.all(numpy.diff(strata[numpy.argsort(scores)]) >= 0)


def test_tables_that_do_not_fit_are_refused():
    with pytest.raises(ServeEvalError, match="do not fit 120 prompts"):
        find_paired_slice(numpy.ones(N), numpy.ones(N), numpy.ones((7, 1)), level=0.01)


def test_answers_that_are_in_a_slice_as_often_as_wrong_ones_of_the_reference_are_not_named():
    """All lost answers are long. That says nothing if the reference's wrong answers are, too."""
    before, after = numpy.ones(N), numpy.ones(N)
    after[:25] = 0.0
    before[80:] = after[80:] = 0.0
    long_after = after == 0.0
    long_before = before == 0.0
    level = {"level": 0.01}
    assert (
        find_answer_slice(before, after, (columns(long_before), columns(long_after)), **level)
        is None
    )
    short = numpy.zeros(N, dtype=bool)
    found = find_answer_slice(before, after, (columns(short), columns(first(25))), **level)
    assert (found.lost, found.all_lost) == (25, 25)
    # The reference's answers to the same prompts are in the slice as well.
    assert (
        find_answer_slice(before, after, (columns(first(25)), columns(first(25))), **level) is None
    )


@pytest.mark.parametrize(("gained", "named"), [(5, True), (18, False)])
def test_answers_that_gain_in_a_slice_count_against_those_lost_there(gained, named):
    """Thirty are lost in the slice, which has to keep a net loss of half of them."""
    before, after = numpy.ones(N), numpy.ones(N)
    after[:30] = 0.0
    before[30 : 30 + gained] = 0.5
    before[80:] = after[80:] = 0.0
    slices = columns(first(48) & ~first(30)), columns(first(30))
    found = find_answer_slice(before, after, slices, level=0.2)
    assert (found is not None) is named


def test_strata_absorb_what_comes_with_difficulty():
    """Half the slice is hard, as is the stratum that holds it."""
    random = numpy.random.default_rng(0)
    hard = random.random(400) < 0.5
    lost = random.random(400) < numpy.where(hard, 0.9, 0.1)
    inside = hard & (random.random(400) < 0.5)
    table = columns(inside)
    assert find_unpaired_slice(lost, table, hard, level=0.01) is None
    found = find_unpaired_slice(lost, table, numpy.zeros(400), level=0.01)
    assert found.lost == int((lost & inside).sum())
    assert found.least_p == pytest.approx(1 / 3000)


def test_each_slice_is_compared_with_the_samples_outside_it():
    table = columns(first(20), first(100))
    found = find_unpaired_slice(first(20), table, numpy.zeros(N), level=0.01)
    assert (found.place, found.lost) == (0, 20)


def test_adjusted_p_counts_draws_that_reach_the_statistic():
    drawn = numpy.array([1.0, 2.0, 3.0, 4.0])
    assert adjust(numpy.array([0.0, 2.0, 2.5, 9.0]), drawn) == pytest.approx([1.0, 0.8, 0.6, 0.2])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), p=st.floats(0.1, 0.9))
def test_a_permutation_of_the_prompts_changes_no_count(seed, p):
    random = numpy.random.default_rng(seed)
    before, after = (random.random((2, N)) < p).astype(float)
    after[:20] = 0.0
    order = random.permutation(N)
    table = columns(first(20), first(60))
    one = find_paired_slice(before, after, table, level=0.05, draws=400)
    other = find_paired_slice(before[order], after[order], table[order], level=0.05, draws=400)
    if one is not None and other is not None and one.place == other.place:
        assert (one.lost, one.gained, one.statistic) == (
            other.lost,
            other.gained,
            pytest.approx(other.statistic),
        )


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_gain_names_nothing(seed):
    random = numpy.random.default_rng(seed)
    after = (random.random(N) < 0.7).astype(float)
    before = numpy.where(first(30), 0.0, after)
    assert find_paired_slice(before, after, columns(first(30)), level=0.05, draws=400) is None


def test_the_level_of_the_exchange_holds():
    """At a level of .1, of 300 healthy runs whose slices follow difficulty, at most 50 are named.

    The binomial probability of more is below one in 10,000.
    """
    random, named = numpy.random.default_rng(4), 0
    for _ in range(300):
        chance = numpy.sort(random.random(N))
        before, after = (random.random((2, N)) < chance).astype(float)
        table = columns(*(first(size) for size in range(10, 110, 10)))
        named += find_paired_slice(before, after, table, level=0.1, draws=199) is not None
    assert named <= 50


@pytest.mark.parametrize("right", [20, 46, 58])
def test_where_every_right_answer_is_lost_no_slice_is_named(right):
    """The slice with more right answers loses more, but not more of them."""
    for seed in range(20):
        random = numpy.random.default_rng(seed)
        before = numpy.zeros(58)
        before[random.permutation(58)[:right]] = 1.0
        members = (random.random((58, 30)) < random.uniform(0.2, 0.8, 30)).astype(float)
        assert find_paired_slice(before, numpy.zeros(58), members, level=0.0015, seed=seed) is None


def test_the_draws_of_many_prompts_are_held_in_parts():
    n = 20_000
    random = numpy.random.default_rng(1)
    before, after = (random.random((2, n)) < 0.8).astype(float)
    slices = random.random((n, 20)) < 0.1
    tracemalloc.start()
    try:
        find_paired_slice(before, after, slices, level=0.0015)
        find_unpaired_slice(after == 0.0, slices, numpy.zeros(n), level=0.0015)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60e6, f"{peak / 1e6:.0f} MB"


def test_slices_that_lose_less_than_their_share_are_no_concentration():
    """Fails if the strongest of slices below 0 must be as strong as a part of itself."""
    assert choose(numpy.array([-2.0, -1.0]), numpy.array([True, True])) is None
    assert choose(numpy.array([-2.0, 1.0]), numpy.array([True, True])) == 1
