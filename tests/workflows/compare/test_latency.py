"""Warnings about how fast two endpoints served the same prompts."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from scipy.stats import binom

from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.workflows.compare.judging import ALPHA, more_failures, slower, uneven


def _had(times: list[float] = [], failed: dict[str, str] = {}) -> TaskAnswers:  # noqa: B006
    latency_s = {str(i): time for i, time in enumerate(times)}
    started_s = {str(i): float(i) for i in range(len(times))}
    task = SimpleNamespace(result=SimpleNamespace(planned=len(times)))
    return TaskAnswers(task, None, ({},), ({},), started_s, latency_s, failed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of_b", "told"),
    [
        ([2.1] * 7, True),  # 2 ** -7
        ([2.1] * 6, False),
        ([2.0] * 50, False),
        ([2.1] * 20 + [1.9] * 18, False),
        ([2.1] * 30 + [0.1] * 10, True),
        ([], False),
    ],
)
def test_more_than_twice_as_long_for_more_than_half_of_the_prompts(
    of_b: list[float], told: bool
) -> None:
    said = slower(_had([1.0] * 60), _had(of_b))
    assert (said is not None) is told
    if said:
        assert said.startswith("slower: B took 2.1 s per answer and A 1 s (medians)")
        assert slower(_had(of_b), _had([1.0] * 60)) is None


def test_on_busy_cores_a_longer_time_is_no_evidence_against_b() -> None:
    """A sound pair of vLLM on two cores took up to seven times as long as one server."""
    one, pair = _had([0.25] * 60), _had([1.82] * 60)
    for quiet in (None, 0.0, 0.89):
        said = slower(one, pair, quiet)
        assert said is not None
        assert said.startswith("slower: B took 1.82 s per answer and A 0.25 s (medians), more than")
    said = slower(one, pair, 0.9)
    assert said is not None
    assert said.startswith("busy_cores: B took 1.82 s per answer and A 0.25 s (medians), while the")
    assert said.endswith("so that this says nothing of B")
    assert slower(one, one, 1.0) is None


def test_two_that_are_alike_are_called_slower_no_more_often_than_alpha_says() -> None:
    """The hardest sound case: a ratio whose median is exactly the limit."""
    rng = random.Random(3)
    said = sum(
        slower(_had([1.0] * 100), _had([2.0 * 3.0 ** rng.uniform(-1, 1) for _ in range(100)]))
        is not None
        for _ in range(1000)
    )
    assert said <= binom.ppf(0.999, 1000, ALPHA)


SOME_LATE = [1.0, 1.0, 1.0, 3.1, 1.0, 1.0] * 10


@pytest.mark.parametrize(
    ("of_a", "of_b", "told"),
    [
        ([1.0] * 60, SOME_LATE, True),
        ([1.0] * 60, [1.0] * 24 + SOME_LATE[:36], True),  # in 6 of 10 parts
        ([1.0] * 60, [1.0] * 30 + SOME_LATE[:30], False),
        ([1.0] * 60, [1.0] * 40 + [3.1] * 20, False),  # one pause
        ([1.0] * 60, [5 * time for time in SOME_LATE], True),  # each compared with its own side
        (SOME_LATE, SOME_LATE, False),  # long answers are long on both
        ([1.0] * 60, [5.0] * 60, False),
        ([], [], False),
    ],
)
def test_more_late_answers_than_the_other_side_has_all_the_time(
    of_a: list[float], of_b: list[float], told: bool
) -> None:
    said = uneven(_had(of_a), _had(of_b))
    assert (said is not None) is told
    if said:
        assert "answers of B took more than 3 times their median, and 0 of A; more in" in said
        assert uneven(_had(of_b), _had(of_a)) is None


def test_two_that_are_alike_are_called_uneven_no_more_often_than_alpha_says() -> None:
    rng = random.Random(4)
    sides = [
        [[1.0 + 4.0 * (rng.random() < 0.2) for _ in range(100)] for _ in range(2)]
        for _ in range(1000)
    ]
    said = sum(uneven(_had(one), _had(other)) is not None for one, other in sides)
    assert said <= binom.ppf(0.999, 1000, ALPHA)


@pytest.mark.parametrize(
    ("of_a", "of_b", "told"),
    [
        (0, 6, True),  # half of 2 ** -6
        (0, 5, False),
        (6, 6, False),
        (6, 0, False),
        (3, 20, True),
    ],
)
def test_requests_that_fail_at_one_of_both(of_a: int, of_b: int, told: bool) -> None:
    a = {f"a{i}": "timeout" for i in range(of_a)}
    b = {f"b{i}": "disconnected" for i in range(of_b)}
    said = more_failures(_had([1.0] * 100, a), _had([1.0] * 100, b))
    assert (said is not None) is told
    if said:
        assert said.startswith(
            f"more_failures: requests for {of_b} of 100 prompts failed at B ({of_b} disconnected)"
        )
    shared = {**b, **a}
    assert more_failures(_had([1.0] * 100, shared), _had([1.0] * 100, shared)) is None


def test_with_repeats_the_warnings_say_that_they_are_about_first_answers() -> None:
    failed = {str(i): "timeout" for i in range(20)}

    def several(one: TaskAnswers) -> TaskAnswers:
        return replace(one, lines=({}, {}))

    a, late, slow = _had([1.0] * 60), _had(SOME_LATE, failed), _had([9.0] * 60)
    assert " of 60 prompts (first answers) " in str(slower(several(a), several(slow)))
    assert " of 60 first answers of B " in str(uneven(several(a), several(late)))
    said = str(more_failures(several(a), several(late)))
    assert "more_failures: requests for 20 of 30 prompts (first answers) failed" in said
    assert "first" not in str(more_failures(a, late))
