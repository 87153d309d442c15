from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.attempts import outcome

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WRAPPED = (
    "Internal server error 400, message='Bad Request', url='http://localhost:18001/v1/completions'"
)


@pytest.mark.parametrize(
    ("status", "message", "worth"),
    [
        (400, "", False),
        (401, "", False),
        (403, "", False),
        (404, "", False),
        (422, "", False),
        (408, "", True),
        (429, "", True),
        (500, "Internal server error Cannot connect to host localhost:8003", True),
        (500, "Internal server error ", True),
        (500, WRAPPED, False),
        (502, "", True),
        (503, WRAPPED, True),
        (504, "", True),
        (501, "", False),
    ],
)
def test_only_what_may_pass_by_itself_is_worth_another_attempt(
    status: int, message: str, worth: bool
) -> None:
    assert outcome.worth_retrying(status, message) is worth


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("3", 3.0),
        ("0", 0.0),
        ("100000", outcome.RETRY_AFTER_CAP_S),
        ("Thu, 01 Jan 2026 00:00:07 GMT", 7.0),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0.0),
    ],
)
def test_retry_after_is_honoured_up_to_a_cap(header: str, seconds: float) -> None:
    pauses = {outcome.pause_s(1, header, random.Random(seed), NOW) for seed in range(20)}
    assert seconds <= min(pauses) < max(pauses) <= seconds + outcome.BASE_S
    assert len(pauses) == 20  # or all clients told to wait would come back at the same moment


@given(
    st.integers(1, 60),
    st.integers(),
    st.sampled_from([None, "", "soon", "-1", "²", "Mon, 01 Jan 0001 00:00:00 +2359", "1e400"]),
)
def test_the_pause_is_jittered_and_bounded(attempt: int, seed: int, header: str | None) -> None:
    pause = outcome.pause_s(attempt, header, random.Random(seed), NOW)
    assert 0.0 <= pause <= min(outcome.CAP_S, outcome.BASE_S * 2 ** (attempt - 1))
