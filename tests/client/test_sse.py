"""Test that event lines do not depend on where the pieces of a stream end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.wire_format.sse import EventLines


def _read(pieces: list[bytes]) -> list[bytes]:
    lines = EventLines()
    found = [payload for piece in pieces for payload in lines.feed(piece)]
    return [payload for payload in found + lines.close() if payload]


@pytest.mark.parametrize(
    ("stream", "payloads"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\rdata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\n", [b"a"]),
        (b"data: a \n\n", [b"a"]),  # trtllm-serve writes a space after the role chunk
        (b"data: a\ndata: b\n\n", [b"a", b"b"]),
        (b": ping\n\nevent: x\nid: 3\nretry: 10\ndata: a\n\n", [b"a"]),
        (b"data: a\n\ndata: b", [b"a", b"b"]),
        (b"data\n\ndatum: a\n\n", []),
        (b"\n\n\n", []),
        (b"", []),
        ("data: é€\n\n".encode(), ["é€".encode()]),
    ],
)
def test_data_lines_are_found_in_every_form(stream: bytes, payloads: list[bytes]) -> None:
    assert _read([stream]) == payloads
    assert _read([stream[i : i + 1] for i in range(len(stream))]) == payloads


@given(
    st.lists(st.text(max_size=8).map(lambda t: t.replace("\n", "").replace("\r", "")), max_size=8),
    st.data(),
)
def test_any_cut_gives_the_same_payloads(texts: list[str], data: st.DataObject) -> None:
    ends = [data.draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\n\r\n"])) for _ in texts]
    stream = "".join(f"data: {text}{end}" for text, end in zip(texts, ends, strict=True)).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert _read(pieces) == _read([stream])
    assert _read([stream]) == [found for text in texts if (found := text.encode().strip())]


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_any_bytes_are_survived(pieces: list[bytes]) -> None:
    assert all(b"\n" not in payload for payload in _read(pieces))


def test_a_line_that_never_ends_costs_no_more_than_its_length() -> None:
    lines = EventLines()
    for _ in range(20_000):
        assert lines.feed(b"x" * 500) == []
    assert lines.feed(b"\n") == []
