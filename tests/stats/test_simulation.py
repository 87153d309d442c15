"""Test simulated endpoints, and attribution behind every simulated router.

Healthy servers are not accused, and a bad one is found among the prompts that the reference had
right. Tests the worst cells of the table that `make calibrate` prints, with fewer rounds.

Tests cells of the table that `make calibrate` prints, with fewer rounds.

Tests cells of the table that `make calibrate` prints, with fewer rounds.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy
import pytest

from serve_eval.evidence.attribution.bad_workers import DIFFICULTY, SUBJECT
from serve_eval.evidence.attribution.latency import describe_slow
from serve_eval.evidence.attribution.run_latency import in_run
from tests.stats.calibrate_loaded import compare_all
from tests.stats.simulation import (
    Routed,
    ServedLoadedServers,
    Setting,
    accused,
    altered,
    chance_below,
    endpoints,
    interval,
    played,
    run,
    serve,
    turned,
)

MANY = 400_000


@pytest.mark.parametrize(
    ("flip_rate", "accuracy"), [(0.0, 0.7), (0.034, 0.9), (0.191, 0.7), (1 / 3, 0.5)]
)
def test_the_mixture_has_its_accuracy_and_two_runs_differ_with_the_flip_rate(
    flip_rate: float, accuracy: float
) -> None:
    random = numpy.random.default_rng(1)
    chances = endpoints(random, MANY, flip_rate=flip_rate, accuracy=accuracy)
    error = 5 * math.sqrt(0.25 / MANY)
    assert chances.mean() == pytest.approx(accuracy, abs=error)
    assert ((chances > 0.0) & (chances < 1.0)).mean() == pytest.approx(3 * flip_rate, abs=error)
    down, up = turned(run(random, chances), run(random, chances))
    assert (down / MANY, up / MANY) == pytest.approx((flip_rate / 2, flip_rate / 2), abs=error)


def test_a_regression_turns_right_answers_wrong_and_a_change_without_one_turns_as_many_the_other_way() -> (  # noqa: E501
    None
):
    random = numpy.random.default_rng(2)
    before = endpoints(random, MANY, flip_rate=0.05)
    error = 5 * math.sqrt(0.25 / MANY)
    for to_wrong, to_right in ((0.03, 0.0), (0.02, 0.02), (0.0, 0.0)):
        after = altered(random, before, to_wrong=to_wrong, to_right=to_right)
        down, up = ((before - after) == 1.0).mean(), ((after - before) == 1.0).mean()
        assert (down, up) == pytest.approx((to_wrong, to_right), abs=error)
        assert ((after == before) | (abs(after - before) == 1.0)).all()


def test_impossible_endpoints_are_refused() -> None:
    random = numpy.random.default_rng(3)
    with pytest.raises(
        ValueError, match=r"no mixture has the flip rate 0\.2 and the accuracy 0\.9"
    ):
        endpoints(random, 10, flip_rate=0.2, accuracy=0.9)
    with pytest.raises(ValueError, match=r"0\.8 of the prompts cannot be turned"):
        altered(random, endpoints(random, MANY, flip_rate=0.0, accuracy=0.7), to_wrong=0.8)


def test_turned_counts_each_row_by_itself() -> None:
    reference = numpy.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    candidate = numpy.array([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]])
    down, up = turned(reference, candidate)
    assert (down.tolist(), up.tolist()) == ([2, 0], [1, 1])


@pytest.mark.parametrize("limit", [-3.5, -0.5, 0.5, 2.5, 9.5])
def test_the_distribution_of_the_difference_equals_its_multinomial_sum(limit: float) -> None:
    n, down, up = 9, Fraction(1, 5), Fraction(1, 8)
    total = sum(
        math.comb(n, b) * math.comb(n - b, c) * down**b * up**c * (1 - down - up) ** (n - b - c)
        for b in range(n + 1)
        for c in range(n - b + 1)
        if c - b < limit
    )
    assert chance_below(n, float(down), float(up), limit) == pytest.approx(float(total), abs=1e-12)


@pytest.mark.parametrize(
    ("known", "rounds"), [(Setting(subject=True), 40), (Setting(place=True), 40)]
)
def test_kinds_of_prompts_that_stick_to_servers_accuse_nobody(known: Setting, rounds: int) -> None:
    random = numpy.random.default_rng(1)
    told = [played(random, 1.0, known) for _ in range(rounds)]
    assert not any(one.now for one in told)
    assert sum(bool(one.before) for one in told) >= 4  # one in six if all prompts are compared
    assert all(one.dealt_by for one in told)


def test_what_the_reference_had_right_accuses_nobody_where_nothing_else_is_known() -> None:
    """More than 4 of 100 are one case in 300 at .01; with all prompts at once some 16 are."""
    random = numpy.random.default_rng(2)
    told = [played(random, 1.0, Setting(runs=3)) for _ in range(100)]
    assert sum(bool(one.now) for one in told) <= 4
    assert sum(bool(one.before) for one in told) >= 9


@pytest.mark.parametrize(("worse", "now", "before"), [(0.1, 18, 10), (0.2, 36, 26)])
def test_a_bad_server_is_found_more_often_against_the_reference(
    worse: float, now: int, before: int
) -> None:
    random = numpy.random.default_rng(3)
    told = [played(random, 0.0, Setting(runs=3), worse=worse) for _ in range(40)]
    assert sum("g1" in one.now for one in told) >= now
    assert sum("g1" in one.before for one in told) <= before
    assert not any(one.now - {"g1"} for one in told)


def test_a_router_in_part_by_subject_is_seen_and_the_bad_server_found_all_the_same() -> None:
    random = numpy.random.default_rng(4)
    told = [played(random, 0.3, Setting(runs=3, subject=True), worse=0.2) for _ in range(20)]
    assert sum("g1" in one.now for one in told) >= 17
    assert sum(SUBJECT in one.dealt_by for one in told) >= 18


def test_a_router_that_keeps_hard_subjects_together_shows_in_the_reference() -> None:
    random = numpy.random.default_rng(5)
    told = [played(random, 1.0, Setting(runs=3), answers=1319) for _ in range(12)]
    assert sum(one.dealt_by == (DIFFICULTY,) for one in told) >= 3


def test_intervals_are_exact() -> None:
    assert interval(0, 100) == pytest.approx((0.0, 0.0362167))  # 1 - .025 ** (1 / 100)
    assert interval(100, 100) == pytest.approx((1 - 0.0362167, 1.0))
    assert interval(5, 50) == pytest.approx((0.0332751, 0.2181354), abs=1e-6)


@pytest.mark.parametrize("steady", [False, True])
def test_healthy_servers_behind_a_router_that_hashes_prompts_are_not_accused(steady: bool) -> None:
    """Fails if answers are permuted: that accuses somebody in a third of the rounds or more.

    More than 3 of 60 are one case in 250 at .01.
    """
    random = numpy.random.default_rng(1)
    found = [accused(random, Routed(repeats=8, steady=steady)) for _ in range(60)]
    assert sum(bool(before) for before, _ in found) >= 10
    assert sum(bool(now) for _, now in found) <= 3


def test_a_server_that_repeats_its_answers_gives_no_more_evidence_at_random_either() -> None:
    random = numpy.random.default_rng(2)
    setting = Routed(repeats=8, hashed=0.0, steady=True)
    assert sum(bool(accused(random, setting)[1]) for _ in range(60)) <= 3


def test_repeats_at_several_servers_find_a_bad_one_more_often() -> None:
    random = numpy.random.default_rng(3)
    once, often = (
        [accused(random, Routed(repeats=n, hashed=0.0), worse=0.3)[1] for _ in range(25)]
        for n in (1, 8)
    )
    assert sum("g1" in one for one in often) >= 20
    assert sum("g1" in one for one in often) > sum("g1" in one for one in once)
    assert not any(one - {"g1"} for one in often)


UNEVEN = (0.7, 0.1, 0.1, 0.1)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        (ServedLoadedServers(shares=UNEVEN), "% of the requests, the others "),
        (ServedLoadedServers(shares=UNEVEN, queued=True), "% of the requests, the others "),
        (
            ServedLoadedServers(long=0.1, sticky=True),
            "prompts with 4,000 tokens to compute, the others 200",
        ),
        (ServedLoadedServers(cached=True), "prompts with 200 tokens to compute, the others 20"),
    ],
)
def test_a_server_with_more_work_is_more_loaded_and_not_slower(
    setting: ServedLoadedServers, why: str
) -> None:
    """Fails if all answers are compared: that calls the server slow in every round."""
    random = numpy.random.default_rng(1)
    rounds = [serve(random, setting) for _ in range(10)]
    assert sum(map(compare_all, rounds)) >= 4
    rows = [row for one in rounds for row in in_run(one)]
    assert not any(row.slow for row in rows)
    loaded = [describe_slow(row) for row in rows if row.loaded]
    assert len(loaded) >= 4
    assert all(one.startswith("more_loaded: generation server g0 takes ") for one in loaded)
    assert all(why in one for one in loaded)
    assert all(one.endswith(": more loaded, and not shown to be slower") for one in loaded)


@pytest.mark.parametrize(
    "setting", [ServedLoadedServers(queued=True), ServedLoadedServers(prompts=50, spread=1.0)]
)
def test_a_queue_that_chance_or_repeats_keep_at_a_server_makes_it_not_slow(
    setting: ServedLoadedServers,
) -> None:
    random = numpy.random.default_rng(2)
    rounds = [serve(random, setting) for _ in range(30)]
    assert sum(map(compare_all, rounds)) >= 5
    assert not any(row.slow for one in rounds for row in in_run(one))


@pytest.mark.parametrize(
    "setting",
    [
        ServedLoadedServers(slower=3.0),
        ServedLoadedServers(slower=3.0, queued=True),
        ServedLoadedServers(slower=3.0, long=0.3),
        ServedLoadedServers(slower=5.0, shares=(0.2, 0.4, 0.2, 0.2)),
    ],
)
def test_a_slow_server_is_named_at_its_own_load(setting: ServedLoadedServers) -> None:
    random = numpy.random.default_rng(3)
    for _ in range(10):
        [slow] = [row for row in in_run(serve(random, setting)) if row.slow]
        assert slow.worker == "g1"
        assert slow.taken_s > 2 * slow.others_s
