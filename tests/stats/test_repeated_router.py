"""Test attribution if a run asks each prompt several times and the router hashes prompts.

Tests cells of the table that `make calibrate` prints, with fewer rounds.
"""

from __future__ import annotations

import numpy
import pytest

from tests.stats.repeated_router import Routed, accused


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
