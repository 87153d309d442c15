from __future__ import annotations

import pytest

from serve_eval.errors import EndpointError
from serve_eval.schema import Failure, FailureKind, Response
from serve_eval.watch import DEAD_AFTER, RATE_AFTER, Watch

ANSWER = Response(text="A", finish_reason="stop")


def _failure(kind: FailureKind = FailureKind.HTTP_ERROR, status: int | None = 500, message: str = "oh") -> Failure:
    return Failure(kind=kind, message=message, status=status)


def test_sixteen_equal_failures_at_the_start_end_a_run() -> None:
    watch = Watch(answered=0)
    for _ in range(DEAD_AFTER - 1):
        watch.see(_failure())
    with pytest.raises(EndpointError, match=r"refuses every request: 16 samples in a row failed.*oh"):
        watch.see(_failure())


def test_different_failures_at_the_start_do_not() -> None:
    watch = Watch(answered=0)
    for number in range(RATE_AFTER - 1):
        watch.see(_failure(status=500 + number % 2))


@pytest.mark.parametrize("kind", [FailureKind.DISCONNECTED, FailureKind.TIMEOUT])
def test_sixteen_lost_connections_or_timeouts_end_a_run_at_any_time(kind: FailureKind) -> None:
    watch = Watch(answered=0, max_error_rate=1.0)
    for _ in range(500):
        watch.see(ANSWER)
    for _ in range(DEAD_AFTER - 1):
        watch.see(_failure(kind, None))
    with pytest.raises(EndpointError, match="stopped answering"):
        watch.see(_failure(kind, None))


def test_what_failed_for_good_does_not_stop_a_run_that_goes_on() -> None:
    watch = Watch(answered=4048)
    for _ in range(56):
        watch.see(_failure(status=400))


def test_a_refusal_for_load_comes_with_what_to_do() -> None:
    watch = Watch(answered=45)
    for _ in range(5):
        watch.see(_failure(status=429))
    with pytest.raises(EndpointError) as caught:
        watch.see(_failure(status=429))
    assert "--rate-limit" in caught.value.hint


@pytest.mark.parametrize(("rate", "allowed"), [(0.10, 5), (0.02, 1), (0.5, 25)])
def test_an_error_rate_above_the_limit_ends_a_run_from_fifty_samples_on(rate: float, allowed: int) -> None:
    watch = Watch(answered=0, max_error_rate=rate)
    for _ in range(RATE_AFTER - allowed):
        watch.see(ANSWER)
    for _ in range(allowed):
        watch.see(_failure(status=400))
    with pytest.raises(EndpointError, match=f"{allowed + 1} of 51 samples failed"):
        watch.see(_failure(status=400))


def test_the_most_frequent_cause_is_the_one_that_is_said() -> None:
    watch = Watch(answered=1)
    for _ in range(45):
        watch.see(ANSWER)
    watch.see(_failure(status=400, message="too long"))
    watch.see(_failure(status=400, message="too long"))
    for number in range(3):
        watch.see(_failure(status=500 + number, message="other"))
    with pytest.raises(EndpointError, match="3 of them as this one: too long"):
        watch.see(_failure(status=400, message="too long"))
