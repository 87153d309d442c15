"""Test whether a router's choice depends on the prompts.

Some routers read the prompts, others do not.
"""

from __future__ import annotations

import numpy
import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.stats.contingency import PERMUTATIONS, dependence

KINDS = (numpy.arange(400) // 20).tolist()


def test_routers_that_choose_at_random_are_suspected_no_more_often_than_the_level() -> None:
    random = numpy.random.default_rng(5)
    found = [dependence(random.integers(4, size=200).tolist(), KINDS[:200]) for _ in range(200)]
    assert sum(p <= 0.05 for p in found) <= 17  # 10 are expected; more are one case in 100
    assert 60 <= sum(p <= 0.5 for p in found) <= 125


def test_a_router_that_keeps_three_in_ten_requests_with_their_like_is_seen() -> None:
    random = numpy.random.default_rng(6)
    for _ in range(10):
        home, stuck = random.integers(4, size=20), random.random(400) < 0.3
        workers = numpy.where(stuck, home[KINDS], random.integers(4, size=400)).tolist()
        assert dependence(workers, KINDS) == 1 / (PERMUTATIONS + 1)


@pytest.mark.parametrize(
    ("workers", "kinds"),
    [
        ([], []),
        (["a"] * 9, list(range(9))),
        (list("abc") * 3, ["one"] * 9),
        (list("ab") * 20, list(range(40))),  # each kind once
        (list("ab") * 200, KINDS),  # taking turns is more even than chance
    ],
)
def test_what_cannot_go_together_is_not_suspected(workers: list[str], kinds: list[int]) -> None:
    assert dependence(workers, kinds) == 1.0


def test_many_answers_are_looked_at_evenly() -> None:
    subject = (numpy.arange(40_000) // 2000).tolist()
    assert dependence([one % 4 for one in subject], subject) < 0.002


def test_one_kind_per_answer_is_wanted() -> None:
    with pytest.raises(ServeEvalError, match="3 workers and 2 kinds"):
        dependence(["a", "b", "a"], [1, 2])
