"""Test which responses to the first completion are final, and which ones pass."""

from __future__ import annotations

import pytest

from serve_eval.launchers._logs.causes import Refusals

KEY = (500, '{"detail": "Internal disaggregated authentication key is required"}')
TRANSCEIVER = (400, "kv_cache_transceiver is disabled, please set")
FORM = (400, "[{'type': 'extra_forbidden', 'loc': ('body', 'x')}]")
OTHER_KEY = (500, "ValueError: Invalid internal disaggregated request authentication")
LOADING = (503, "kv_cache_transceiver is disabled")


def counted(*answers: tuple[int, str]) -> list[bool]:
    refusals = Refusals()
    return [refusals.permanent(*answer) for answer in answers]


@pytest.mark.parametrize(
    "answer", [KEY, TRANSCEIVER, OTHER_KEY, FORM, (422, "x"), (405, "Method Not Allowed")]
)
def test_the_third_of_one_kind_is_the_last(answer: tuple[int, str]) -> None:
    assert counted(answer, answer, answer) == [False, False, True]


@pytest.mark.parametrize(
    "answer",
    [
        (503, "starting"),
        LOADING,
        (500, "Internal server error No 0 servers available"),
        (500, '{"detail": "Internal server error "}'),
        (500, ""),
        (429, "extra inputs are not permitted"),
        (400, "Generation failed"),
        (500, "OSError: [Errno 98] Address already in use"),
        (200, "CUDA out of memory"),
        (404, "Not Found"),
        (500, "RuntimeError: Etcd3 error in set: ConnectionFailedError"),
    ],
)
def test_others_are_asked_for_again(answer: tuple[int, str]) -> None:
    assert not any(counted(*[answer] * 9))


def test_they_must_be_alike_and_follow_each_other() -> None:
    assert counted(KEY, KEY, (503, ""), KEY, KEY) == [False] * 5
    assert counted(KEY, TRANSCEIVER, KEY, TRANSCEIVER) == [False] * 4
    assert (
        counted((400, "field required: a"), (400, "field required: b"), (400, "field required: c"))
        == [False] * 3
    )


def test_numbers_in_a_refusal_with_a_known_cause_do_not_matter() -> None:
    assert counted(*[(500, f"request {i}: {KEY[1]}") for i in range(3)])[-1]
