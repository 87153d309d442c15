"""Test how the pieces of a stream become event lines and answers."""

import contextlib
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.wire_format.bodies import Said
from serve_eval.client.wire_format.refusal import InvalidResponse, LostStream
from serve_eval.client.wire_format.sse import EventLines
from serve_eval.client.wire_format.stream import StreamedAnswer
from serve_eval.schema import Usage


def _read(pieces):
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
def test_data_lines_are_found_in_every_form(stream, payloads):
    assert _read([stream]) == payloads
    assert _read([stream[i : i + 1] for i in range(len(stream))]) == payloads


@given(
    st.lists(st.text(max_size=8).map(lambda t: t.replace("\n", "").replace("\r", "")), max_size=8),
    st.data(),
)
def test_any_cut_gives_the_same_payloads(texts, data):
    ends = [data.draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\n\r\n"])) for _ in texts]
    stream = "".join(f"data: {text}{end}" for text, end in zip(texts, ends, strict=True)).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert _read(pieces) == _read([stream])
    assert _read([stream]) == [found for text in texts if (found := text.encode().strip())]


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_any_bytes_are_survived(pieces):
    assert all(b"\n" not in payload for payload in _read(pieces))


def test_a_line_that_never_ends_costs_no_more_than_its_length():
    lines = EventLines()
    for _ in range(20_000):
        assert lines.feed(b"x" * 500) == []
    assert lines.feed(b"\n") == []


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def _chat(text=None, finish=None, **delta):
    content = {} if text is None else {"content": text}
    return {
        "choices": [{"index": 0, "delta": {**content, **delta}, "finish_reason": finish}],
        "usage": None,
    }


def _text(text, finish=None):
    return {
        "choices": [{"index": 0, "text": text, "finish_reason": finish, "stop_reason": None}],
        "usage": None,
    }


def _bytes(*events, end="\n\n"):
    return "".join(
        f"data: {e if isinstance(e, str) else json.dumps(e)}{end}" for e in events
    ).encode()


def _said(*pieces):
    answer = StreamedAnswer()
    for number, piece in enumerate(pieces):
        answer.feed(piece, float(number))
    return answer.finish()


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", " \n\n"])
@pytest.mark.parametrize("done", [["[DONE]"], []])
def test_a_chat_stream_is_joined_with_and_without_done(end, done):
    said = _said(
        _bytes(
            ROLE, _chat(""), _chat("#### "), _chat("7"), _chat(finish="stop"), USAGE, *done, end=end
        )
    )
    assert (said.text, said.finish_reason, said.usage) == (
        "#### 7",
        "stop",
        Usage(prompt_tokens=7, completion_tokens=3),
    )


def test_a_text_stream_ends_with_its_last_text():
    assert _said(_bytes(_text(" 4"), _text("2", "length"), "[DONE]")) == Said(
        text=" 42", finish_reason="length"
    )


def test_reasoning_is_kept_apart_in_either_of_its_names():
    said = _said(
        _bytes(_chat(reasoning_content="h"), _chat(reasoning="m"), _chat("7"), _chat(finish="stop"))
    )
    assert (said.text, said.reasoning) == ("7", "hm")


def test_events_after_done_do_not_count():
    answer = StreamedAnswer()
    answer.feed(_bytes(_chat("7", "stop"), "[DONE]", _chat("8"), {"error": "late"}), 0.0)
    assert answer.done
    answer.feed(_bytes({"error": "later"}), 1.0)
    assert answer.finish().text == "7"


def test_a_character_cut_in_two_by_the_socket_is_whole():
    choice = '{"index": 0, "text": "Zürich 東京 🙂", "finish_reason": "stop"}'
    stream = f'data: {{"choices": [{choice}]}}\n\n'.encode()
    for cut in range(len(stream)):
        assert _said(stream[:cut], stream[cut:]).text == "Zürich 東京 🙂"


def test_one_chunk_over_several_data_lines_is_one_chunk():
    lines = json.dumps(_chat("7", "stop"), indent=1).splitlines()
    assert _said(("".join(f"data: {line}\n" for line in lines) + "\n").encode()).text == "7"


def test_of_several_answers_the_first_counts():
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert _said(_bytes(other, _chat("yes", "stop"), other)).text == "yes"


@pytest.mark.parametrize("odd", [[1], {"a": 1}, 7, True])
def test_an_id_of_an_odd_kind_tells_streams_apart_and_raises_nothing(odd):
    pieces = [{**_chat("a", "stop" if last else None), "id": odd} for last in (False, True)]
    assert _said(_bytes(*pieces)).text == "aa"
    unended = _bytes(pieces[0]) + f"data: {json.dumps(pieces[1])}".encode()
    assert _said(unended).text == "aa"
    with pytest.raises(InvalidResponse, match="several answers"):
        _said(_bytes(pieces[0], pieces[0], {**pieces[1], "id": "another"}))


def test_a_bare_done_is_a_lost_answer():
    for stream in (_bytes("[DONE]"), _bytes({"choices": []}, "[DONE]")):
        with pytest.raises(LostStream):
            _said(stream)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (b"", "without a finish_reason"),
        (_bytes(ROLE), "without a finish_reason"),
        (_bytes(_chat("half")), "without a finish_reason"),
        (_bytes(_chat("half"), "[DONE]"), "without a finish_reason"),
        (_bytes(_chat("half", "cancelled"), "[DONE]"), "'cancelled'"),
        (_bytes({"error": {"message": "engine died"}}, "[DONE]"), "engine died"),
        (_bytes(_chat("7"), {"error": "engine died"}), "engine died"),
        (_bytes("oops"), "not an OpenAI stream: oops"),
        (_bytes("{oops}"), "not an OpenAI stream"),
        (b'data: {"choices": [{"text": "half', "not an OpenAI stream"),
        (_bytes("[]"), "not an OpenAI stream"),
        (b"<html>", "without a finish_reason"),
    ],
)
def test_a_stream_without_an_answer_is_invalid_and_not_lost(stream, message):
    with pytest.raises(InvalidResponse, match=message) as caught:
        _said(stream)
    assert not isinstance(caught.value, LostStream)


def test_times_are_those_of_the_first_and_the_last_token():
    answer = StreamedAnswer()
    for at, event in enumerate(
        [ROLE, _chat(""), _chat(reasoning_content="h"), _chat("7"), _chat(finish="stop"), USAGE]
    ):
        answer.feed(_bytes(event), float(at))
    assert (answer.first_at, answer.last_at, answer.complete) == (2.0, 3.0, True)


def test_a_hundred_thousand_events_are_read():
    said = _said(_bytes(*(_text("ab") for _ in range(100_000)), _text("", "stop")))
    assert len(said.text) == 200_000


def test_lines_that_never_make_a_chunk_end_soon():
    with pytest.raises(InvalidResponse):
        _said(b"data: {\n" * 100_000)


@given(st.lists(st.tuples(st.text(max_size=5), st.booleans()), max_size=6), st.data())
def test_any_cut_of_a_stream_gives_the_same_answer(parts, data):
    chunks = [_chat(text) if plain else _chat(reasoning_content=text) for text, plain in parts]
    stream = _bytes(ROLE, *chunks, _chat(finish="stop"), USAGE, "[DONE]")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert _said(*pieces) == _said(stream)
    assert _said(stream).text == "".join(text for text, plain in parts if plain)


@given(
    st.lists(
        st.binary(max_size=60) | st.sampled_from([b"data: ", b"\n\n", b"[DONE]", b'{"choices":']),
        max_size=12,
    )
)
def test_any_bytes_give_an_answer_or_an_invalid_response(pieces):
    with contextlib.suppress(InvalidResponse):
        _said(*pieces)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "delta", "index", "content", "error", "usage", "finish_reason"]
                ),
                x,
            )
        ),
    )
)
def test_any_json_gives_an_answer_or_an_invalid_response(value):
    with contextlib.suppress(InvalidResponse):
        _said(_bytes({"choices": [value]}, "[DONE]"))
    with contextlib.suppress(InvalidResponse):
        _said(_bytes(value, "[DONE]"))


@pytest.mark.parametrize(
    ("line", "heard"),
    [
        (b": ping\n\n", False),
        (b"event: ping\nid: 7\nretry: 5\n\n", False),
        (b"data:\n\n", False),
        (b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\n', False),
        (b'data: {"choices": [{"index": 0, "text": "A"}]}\n\n', True),
        # An engine sends these for tokens that a tool or reasoning parser holds back.
        (b'data: {"choices": [{"index": 0, "delta": {}}]}\n\n', True),
        (b'data: {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}\n\n', True),
        (b'data: {"choices": [{"index": 0, "text": ""}]}\n\n', True),
        (b'data: {"choices": [{"index": 0,', False),
    ],
)
def test_only_chunks_with_a_choice_are_a_sign_of_an_answer(line, heard):
    stream = StreamedAnswer()
    stream.feed(b'data: {"choices": [{"index": 0, "text": "A"}]}\n\n', 1.0)
    stream.feed(line, 2.0)
    assert stream.heard_at == (2.0 if heard else 1.0)


def _named(told, text, finish=None):
    return {"id": told, **_text(text or "", finish)}


@pytest.mark.parametrize("cuts", [[], [1], [2], [3], [9], [1, 2, 3, 4]])
def test_a_byte_order_mark_before_a_stream_loses_nothing(cuts):
    stream = b"\xef\xbb\xbf" + _bytes(_text("8"), _text("0", "stop"), "[DONE]")
    edges = [0, *cuts, len(stream)]
    assert _said(*(stream[a:b] for a, b in pairwise(edges))).text == "80"


@pytest.mark.parametrize(
    "events",
    [
        [
            _named("a", "1"),
            _named("b", "x"),
            _named("a", "2"),
            _named("b", "y"),
            _named("a", None, "stop"),
        ],
        [_named("a", "1"), _named("a", "2"), _named("b", "x"), _named("b", "y", "stop")],
        [_named("a", "1"), _named("b", "x"), _named("b", "y", "stop")],
        [_named("a", "1"), _named("a", "2"), _named("b", None, "stop")],
        [_named("a", "1"), _named("b", "2"), _named("c", "3"), _named("a", "4", "stop")],
    ],
    ids=[
        "in turn",
        "one behind the other",
        "one piece of the first",
        "the end of another",
        "one comes again",
    ],
)
def test_pieces_of_two_answers_are_never_glued(events):
    with pytest.raises(InvalidResponse, match="several answers"):
        _said(_bytes(*events))


@pytest.mark.parametrize(
    "events",
    [
        [_named("a", "1"), _named("a", "2"), _named("a", None, "stop"), {"id": "b", **USAGE}],
        [_named("a", "1"), _named("b", "2"), _named("c", None, "stop")],
        [{"id": "r", **ROLE}, _named("a", "1"), _named("a", "2", "stop")],
        [_named("a", "1"), _text("2"), _named("a", None, "stop")],
        [_named("", "1"), _named("", "2"), _named("", None, "stop")],
    ],
    ids=["one id", "each its own", "the role's own", "some have none", "empty ones"],
)
def test_pieces_of_one_answer_have_one_id_or_each_its_own(events):
    assert _said(_bytes(*events)).text == "12"


@pytest.mark.parametrize(
    "more", [_text("8"), _chat("8"), _chat(reasoning="hm"), _chat(tool_calls=[{"index": 0}])]
)
def test_what_goes_on_behind_its_finish_reason_is_no_answer(more):
    with pytest.raises(InvalidResponse, match="after its finish_reason"):
        _said(_bytes(_text("7", "stop"), more))


def test_behind_the_finish_reason_the_usage_and_empty_pieces_may_come():
    said = _said(_bytes(_chat("7", "stop"), _chat(""), _chat(finish="stop"), USAGE, "[DONE]"))
    assert (said.text, said.usage.completion_tokens) == ("7", 3)
