"""Bound the tokens and the time of a run, request by request."""

from __future__ import annotations

import math
import statistics
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.traffic import count_uncounted, lacks_usage
from serve_eval.evaluation.engine.budget import BudgetGroup, RunBudget, count_tokens
from serve_eval.schema import (
    TIME,
    TOKENS,
    Attempt,
    Failure,
    FailureKind,
    Response,
    Sample,
    SamplingParams,
    Usage,
)
from tests.evaluation.engine.budget_bias import simulate
from tests.evaluation.engine.budget_task import make_task

MOST = 100
"""Tokens of an answer at most."""


TASK = make_task(SamplingParams(max_tokens=MOST))
SAMPLE = Sample(id="one", prompt="x" * 40, target="A")


def _attempt(failure: FailureKind | None = None, status: int | None = 200) -> Attempt:
    return Attempt(start_s=1.0, end_s=2.0, failure=failure, status=status, request_id="r")


def _answer(prompt: int, generated: int, text: str = "A", attempts: int = 1) -> Response:
    return Response(
        text=text,
        finish_reason="stop",
        usage=Usage(prompt_tokens=prompt, completion_tokens=generated),
        latency_s=1.0,
        attempts=(_attempt(),) * attempts,
    )


def _run(tokens: int, costs: list[int], in_flight: int) -> tuple[int, int, RunBudget]:
    """Return how many requests started, and what they cost, if answers come in order."""
    budget, waiting, spent, started = RunBudget(tokens=tokens), deque[int](), 0, 0
    left = deque(costs)
    while True:
        while left and len(waiting) < in_flight and budget.admits(TASK, SAMPLE):
            waiting.append(left.popleft())
            started += 1
        if not waiting:
            return started, spent, budget
        cost = waiting.popleft()
        spent += cost
        budget.settle(TASK, SAMPLE, _answer(10, cost - 10))


@given(
    st.lists(st.integers(11, 10 + MOST), min_size=1, max_size=300),
    st.integers(0, 20_000),
    st.integers(1, 40),
)
def test_what_runs_cost_is_bounded(costs: list[int], tokens: int, in_flight: int):
    started, spent, budget = _run(tokens, costs, in_flight)
    assert spent == sum(costs[:started])
    # Each request in flight can cost more than expected, but no more than its limit.
    assert spent <= tokens + in_flight * (10 + MOST)
    if started < len(costs):
        assert budget.ended_by == TOKENS
        assert spent + 10 + MOST > tokens
    else:
        assert not budget.ended_by


def test_answers_of_one_length_never_exceed_the_bound():
    for in_flight in (1, 7, 64):
        started, spent, _ = _run(5000, [40] * 1000, in_flight)
        assert spent <= 5000 < spent + 2 * 40
        assert started == spent // 40


def test_few_answers_say_nothing_of_the_next():
    budget = RunBudget(tokens=3 * (10 + MOST))
    assert [budget.admits(TASK, SAMPLE) for _ in range(4)] == [True, True, True, False]
    assert not budget.ended_by
    known = RunBudget(tokens=3 * (10 + MOST))
    known.know(TASK.name, 20.0 * 1000, 1000)
    assert 14 <= sum(known.admits(TASK, SAMPLE) for _ in range(50)) <= 16


def test_time_ends_a_run_while_requests_are_in_flight():
    now = [0.0]
    budget = RunBudget(time_s=5.0, clock=lambda: now[0])
    assert budget.admits(TASK, SAMPLE)
    now[0] = 4.9
    assert budget.admits(TASK, SAMPLE)
    now[0] = 5.0
    assert not budget.admits(TASK, SAMPLE)
    assert budget.ended_by == TIME


def test_runs_of_a_group_end_together():
    group = BudgetGroup()
    one, other = (RunBudget(tokens=tokens, group=group) for tokens in (0, 10**6))
    assert other.admits(TASK, SAMPLE)
    assert not one.admits(TASK, SAMPLE)
    assert not other.admits(TASK, SAMPLE)
    assert (one.ended_by, other.ended_by) == (TOKENS, TOKENS)


def test_what_a_server_does_not_report_costs_as_usual():
    budget = RunBudget(tokens=10_000)
    budget.know(TASK.name, 100.0 * 500, 500)

    def spend(result: Response | Failure | None) -> float:
        before = budget._tokens
        assert budget.admits(TASK, SAMPLE)
        budget.settle(TASK, SAMPLE, result)
        assert before is not None
        assert budget._tokens is not None
        return before - budget._tokens

    assert spend(None) == pytest.approx(100.0, rel=0.01)
    refused = Failure(
        kind=FailureKind.HTTP_ERROR,
        message="busy",
        attempts=(_attempt(FailureKind.HTTP_ERROR, 429),),
    )
    assert spend(refused) == 0.0
    lost = Failure(
        kind=FailureKind.TIMEOUT, message="late", attempts=(_attempt(FailureKind.TIMEOUT, None),)
    )
    assert spend(lost) == pytest.approx(100.0, rel=0.01)
    assert spend(_answer(0, 0, text="y" * 80)) == 40 / 4 + 80 / 4


@pytest.mark.parametrize(
    ("response", "lacks", "uncounted", "tokens"),
    [
        (_answer(7, 3), False, 0, 10.0),
        (_answer(7, 0, text=""), False, 0, 7.0),
        (_answer(7, 0, text="yyyy"), True, 0, 8.0),
        (_answer(0, 3), True, 0, 13.0),
        (_answer(7, 3, attempts=2), False, 1, 10.0),
    ],
)
def test_tokens_of_an_answer(response: Response, lacks: bool, uncounted: int, tokens: float):
    assert lacks_usage(response) is lacks
    assert count_uncounted(response) == uncounted
    assert count_tokens(SAMPLE, response) == tokens


def test_short_answers_are_not_favoured():
    """The asked samples have the mean of all; those that came first have the short, right ones."""
    ended = simulate(60, 60_000, 64)
    asked = [100.0 * (one.asked - whole) for one, whole in ended]
    came = [100.0 * (one.came - whole) for one, whole in ended]
    error = statistics.stdev(asked) / math.sqrt(len(asked))
    assert abs(statistics.fmean(asked)) < 4.0 * error + 0.5
    assert statistics.fmean(came) > 1.0
    assert statistics.fmean(one.spent for one, _ in ended) < 1.12 * 60_000
