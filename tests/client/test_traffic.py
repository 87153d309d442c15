from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.traffic import (
    MOST_FINGERPRINTS,
    RESOLUTION,
    Times,
    TokenSteps,
    TrafficCounter,
)
from serve_eval.schema import Acceptance, Attempt, Failure, FailureKind, Response, Usage


def _attempt(failure: FailureKind | None = None, status: int | None = 200, **more: Any) -> Attempt:
    return Attempt(start_s=0.0, end_s=1.0, failure=failure, status=status, request_id="r", **more)


@given(st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=300))
def test_percentiles_are_those_of_the_sorted_times_to_the_resolution(times: list[float]) -> None:
    counted = Times()
    for seconds in times:
        counted.add(seconds)
    found = counted.percentiles()
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        exact = sorted(times)[math.ceil(share * len(times)) - 1]
        assert found[name] == pytest.approx(exact, rel=RESOLUTION / 2, abs=1e-6)
    assert found["max"] == max(times)


@pytest.mark.parametrize("seconds", [0.001, 1.0, 1.001, 77.7])
def test_a_percentile_is_the_middle_of_its_class(seconds: float) -> None:
    counted = Times()
    counted.add(seconds, 99)
    counted.add(100.0)
    assert counted.percentiles()["p99"] == pytest.approx(seconds, rel=RESOLUTION / 2, abs=1e-6)


def test_times_that_are_taken_back_leave_no_trace_but_a_rounded_maximum() -> None:
    counted = Times()
    for seconds, times in ((1.0, 1), (3.0, 1), (3.0, -1)):
        counted.add(seconds, times)
    assert counted.percentiles() == pytest.approx(
        dict.fromkeys(("p50", "p90", "p99", "max"), 1.0), rel=RESOLUTION
    )
    counted.add(1.0, -1)
    assert counted.percentiles() == {}


def test_the_steps_of_all_answers_are_added_and_taken_back() -> None:
    """Ten tokens in five steps, and thirty in ten."""
    steps = TokenSteps()
    assert steps.acceptance() is None
    steps.add(10, 2.0)
    steps.add(30, 3.0)
    assert steps.acceptance() == Acceptance(
        answers=2, length=38 / 13, all_steps=40 / 15, per_answer=2.5
    )
    steps.add(10, 2.0, -1)
    assert steps.acceptance() == Acceptance(answers=1, length=29 / 9, all_steps=3.0, per_answer=3.0)


def test_no_time_gives_no_percentile_and_none_at_all_is_a_time() -> None:
    assert Times().percentiles() == {}
    counted = Times()
    counted.add(0.0)
    assert counted.percentiles() == {"p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}


def test_retries_are_counted_by_what_had_gone_wrong() -> None:
    counter = TrafficCounter()
    busy, lost = _attempt(FailureKind.HTTP_ERROR, 429), _attempt(FailureKind.DISCONNECTED, 200)
    usage = Usage(prompt_tokens=3, completion_tokens=5)
    counter.see(
        Response(
            text="",
            finish_reason="stop",
            usage=usage,
            latency_s=2.0,
            attempts=(busy, lost, _attempt()),
        )
    )
    counter.see(Failure(kind=FailureKind.HTTP_ERROR, message="", attempts=(busy, busy)))
    odd = (_attempt(FailureKind.HTTP_ERROR, 400), _attempt(FailureKind.HTTP_ERROR, 399), busy)
    counter.see(Failure(kind=FailureKind.HTTP_ERROR, message="", attempts=odd))
    counter.see(
        Response(
            text="",
            finish_reason="stop",
            latency_s=1.0,
            ttft_s=0.5,
            tpot_s=0.1,
            attempts=(_attempt(),),
        )
    )
    traffic = counter.traffic()
    assert (traffic.attempts, traffic.not_streamed) == (9, 0)
    assert traffic.retries == {
        "disconnected": 1,
        "http_error": 1,
        "http_error 400": 1,
        "http_error 429": 2,
    }
    assert (traffic.prompt_tokens, traffic.completion_tokens) == (3, 5)
    assert traffic.latency_s["max"] == 2.0
    assert (traffic.ttft_s["max"], traffic.tpot_s["max"]) == (0.5, 0.1)


def test_an_answer_that_a_stream_lost_is_counted() -> None:
    counter = TrafficCounter()
    lost = _attempt(FailureKind.INVALID_RESPONSE, streamed=True)
    counter.see(
        Response(
            text="", finish_reason="stop", latency_s=1.0, attempts=(lost, _attempt(streamed=False))
        )
    )
    assert counter.traffic().not_streamed == 1


def _named(fingerprint: str, start_s: float, end_s: float) -> Response:
    given = Attempt(start_s=start_s, end_s=end_s, failure=None, status=200, request_id="r")
    return Response(
        text="", finish_reason="stop", attempts=(given,), system_fingerprint=fingerprint
    )


def test_the_answers_of_each_configuration_are_counted_with_their_times() -> None:
    counter = TrafficCounter()
    for one in (_named("b", 4.0, 5.0), _named("a", 1.0, 2.0), _named("a", 3.0, 7.0)):
        counter.see(one)
    counter.see(Response(text="", finish_reason="stop", attempts=(_attempt(),)))
    found = counter.traffic().system_fingerprints
    assert [(name, one.answers, one.first_s, one.last_s) for name, one in found.items()] == [
        ("a", 2, 1.0, 7.0),
        ("b", 1, 4.0, 5.0),
    ]
    counter.see(_named("b", 4.0, 5.0), -1)
    assert list(counter.traffic().system_fingerprints) == ["a"]


def test_a_server_that_names_each_answer_differently_takes_no_memory() -> None:
    counter = TrafficCounter()
    for number in range(1000):
        counter.see(_named(str(number), 0.0, 1.0))
    assert len(counter.traffic().system_fingerprints) == MOST_FINGERPRINTS
