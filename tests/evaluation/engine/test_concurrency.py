"""Test the automatic number of requests in flight against model endpoints in simulated time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

import pytest

from serve_eval.evaluation.engine.load_session import MOST, START, Automatic, Fixed
from serve_eval.schema import Attempt, Failure, FailureKind, Limits, Response


def _attempt(**more: Any) -> Attempt:
    return Attempt(
        **{"start_s": 0.0, "end_s": 1.0, "failure": None, "status": 200, "request_id": "r", **more}
    )


def _response(latency_s: float, *statuses: int) -> Response:
    refused = tuple(_attempt(failure=FailureKind.HTTP_ERROR, status=status) for status in statuses)
    return Response(
        text="A", finish_reason="stop", latency_s=latency_s, attempts=(*refused, _attempt())
    )


def _drive(
    pace: Automatic,
    latency_s: Callable[[int], float],
    samples: int,
    refuses: Callable[[int], bool] = lambda n: False,
) -> list[tuple[float, int]]:
    """Keep an endpoint busy in a closed loop and return the numbers in flight over time.

    A request takes `latency_s(n)` with n in flight.
    """
    rng, now, flying, seen = random.Random(0), 0.0, [], []
    number = 0
    while samples:
        while len(flying) < pace.limit:
            number += 1
            took = latency_s(len(flying) + 1) * rng.uniform(0.8, 1.2)
            heapq.heappush(flying, (now + took, number, took, refuses(len(flying) + 1)))
        now, _, took, refused = heapq.heappop(flying)
        samples -= 1
        pace.note_result(_response(took, *([429] if refused else [])), now)
        seen.append((now, pace.limit))
    return seen


@pytest.mark.parametrize("capacity", [20, 64, 200])
def test_it_climbs_to_what_the_endpoint_carries_and_not_far_beyond(capacity: int) -> None:
    pace = Automatic(Limits(concurrency="auto"))
    seen = _drive(pace, lambda n: 1.0 * max(1.0, n / capacity), samples=60 * capacity)
    late = [limit for _, limit in seen[len(seen) // 2 :]]
    assert capacity * 0.7 <= sum(late) / len(late) <= capacity * 2.2
    assert max(limit for _, limit in seen) <= 4 * capacity
    assert pace.steps
    assert pace.steps[0].concurrency == 2 * START
    assert all(step.why and step.samples_per_s > 0 and step.latency_s > 0 for step in pace.steps)


def test_it_grows_as_far_as_it_may_where_the_endpoint_never_slows_down() -> None:
    pace = Automatic(Limits(concurrency="auto"))
    _drive(pace, lambda n: 0.5, samples=20_000)
    assert pace.limit == MOST
    few = Automatic(Limits(concurrency="auto"), most=24)
    assert max(limit for _, limit in _drive(few, lambda n: 0.5, samples=2000)) == 24


def test_refusals_for_load_make_it_fall() -> None:
    pace = Automatic(Limits(concurrency="auto"))
    seen = _drive(pace, lambda n: 0.2, samples=20_000, refuses=lambda n: n > 100)
    late = [limit for _, limit in seen[len(seen) // 2 :]]
    assert 45 <= sum(late) / len(late) <= 130
    assert any("refused the load" in step.why for step in pace.steps)


def test_timeouts_make_it_fall_to_one_and_never_below() -> None:
    pace = Automatic(Limits(concurrency="auto"))
    lost = Failure(
        kind=FailureKind.TIMEOUT, message="", attempts=(_attempt(failure=FailureKind.TIMEOUT),)
    )
    for second in range(500):
        pace.note_result(lost, float(second))
    assert pace.limit == 1


@pytest.mark.parametrize("fallen", [1, 2, 3])
def test_it_climbs_again_from_any_depth(fallen: int) -> None:
    pace = Automatic(Limits(concurrency="auto"))
    pace.limit = pace._before = fallen
    pace._climbing, pace._settling = False, 0
    _drive(pace, lambda n: 0.5, samples=20_000)
    assert pace.limit > 4 * START


def test_answers_that_near_the_time_limit_make_it_fall() -> None:
    pace = Automatic(Limits(concurrency="auto", stall_timeout_s=10.0))
    _drive(pace, lambda n: n / 4.0, samples=3000)
    assert any("half of the stall timeout" in step.why for step in pace.steps)
    assert pace.limit <= 2 * START


def test_a_fixed_number_stays_what_it_is() -> None:
    fixed = Fixed(7)
    fixed.note_result(_response(1.0, 429), 1.0)
    assert (fixed.limit, fixed.steps) == (7, ())
