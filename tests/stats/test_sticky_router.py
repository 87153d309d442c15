"""Test attribution if similar prompts stick to one server.

Healthy servers are not accused, and a bad one is found among the prompts that the reference had
right. Tests the worst cells of the table that `make calibrate` prints, with fewer rounds.
"""

from __future__ import annotations

import numpy
import pytest

from serve_eval.evidence.attribution.bad_workers import DIFFICULTY, SUBJECT
from tests.stats.sticky_router import Setting, interval, played


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
