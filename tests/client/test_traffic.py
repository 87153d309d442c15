from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.traffic import MOST_FINGERPRINTS, RESOLUTION, Times, TrafficCounter
from serve_eval.schema import Attempt, Failure, FailureKind, Response, Usage


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
        assert found[name] == pytest.approx(exact, rel=1.01 * RESOLUTION, abs=1e-6)
    assert found["max"] == max(times)


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
    assert (traffic.attempts, traffic.not_streamed) == (6, 0)
    assert traffic.retries == {"disconnected": 1, "http_error 429": 2}
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
