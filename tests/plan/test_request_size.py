"""Test that requests with too large media are refused before they are sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.datasets import small_media
from serve_eval.datasets.media import video_part
from serve_eval.errors import PlanError
from serve_eval.evaluation.preflight import check_sizes
from serve_eval.schema import (
    Connection,
    Limits,
    MediaPart,
    Message,
    Plan,
    Sample,
    SendMedia,
    Spec,
    TextPart,
)

DOT = Path(small_media.__file__).with_name("dot.mp4")
BYTES = (DOT.stat().st_size + 2) // 3 * 4 + len("Hi")


def _check(most: int, *parts: MediaPart, send_media: SendMedia = "inline") -> None:
    plan = Plan(
        model="m",
        launcher=Spec(name="external"),
        tasks=(),
        connection=Connection(send_media=send_media),
        limits=Limits(max_request_bytes=most),
    )
    samples = [
        Sample(
            id=str(number),
            prompt=(Message(role="user", content=(TextPart(text="Hi"), *parts[:number])),),
            target="",
        )
        for number in range(1 + len(parts))
    ]
    check_sizes("t", [*samples, Sample(id="text", prompt="x" * 9999, target="")], plan)


def test_a_request_of_the_largest_size_is_sent() -> None:
    _check(BYTES, video_part(DOT))
    _check(BYTES + len("data:video/mp4;base64,"), small_media.dot())


def test_a_larger_request_is_refused_with_what_to_do() -> None:
    with pytest.raises(PlanError) as refused:
        _check(BYTES - 1, video_part(DOT), video_part(DOT))
    assert str(refused.value) == (
        f"t: the request of sample 2 has {2 * BYTES - 2:,} bytes; the limit is {BYTES - 1:,},"
        " and 1 more requests exceed it"
    )
    assert "--set connection.send_media=path" in refused.value.hint
    with pytest.raises(PlanError, match="the limit is 99"):
        _check(99, small_media.dot())


def test_a_path_is_no_large_request() -> None:
    _check(999, video_part(DOT), video_part(DOT), send_media="path")
