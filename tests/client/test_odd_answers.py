"""Errors in place of answers, and texts in other fields: read, or refused, never scored empty."""

import asyncio
import json
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.client import Client
from serve_eval.client.wire_format import wire
from serve_eval.client.wire_format.refusal import InvalidResponse
from serve_eval.client.wire_format.stream import StreamedAnswer
from serve_eval.schema import (
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Message,
    Request,
    Response,
    SamplingParams,
)
from tests.scripted_server import ScriptedServer, raw

PARIS = "Paris"
STOP = {"finish_reason": "stop"}
ERRORS = [
    {"message": "gone"},
    "gone",
    {"code": 500},
    ["gone"],
    {},
    500,
    True,
]
IN_PLACE = [
    *({"error": error} for error in ERRORS),
    {"object": "error", "message": "gone"},
    {"object": "Error", "message": "gone"},
    {"object": "api_error"},
    {"detail": "gone"},
    {"detail": [{"msg": "gone"}]},
    {"errors": ["gone"]},
    {"type": "error", "message": "gone"},
    {"type": "invalid_request_error"},
    {"message": "gone", "code": 500},
    {"message": "gone", "status": "error"},
    {"message": "gone", "code": "internal_error"},
    {"status": 503},
    {"status": "500", "message": "gone"},
    {"code": 502},
    {"error_code": 336, "error_msg": "gone"},
    {"err": "gone"},
    {"exception": "gone"},
]
"""Fields by which servers tell an error under HTTP 200."""


def _whole(body):
    return wire.decode(json.dumps(body).encode(), "application/json")


def _events(*events):
    return b"".join(
        one if isinstance(one, bytes) else b"data: " + json.dumps(one).encode() + b"\n\n"
        for one in events
    )


def _streamed(*events):
    answer = StreamedAnswer()
    answer.feed(_events(*events), 1.0)
    return answer.finish()


def _piece(text=None, finish=None, **more):
    delta = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish, **more}]}


def _choice(content=PARIS, **more):
    return {"index": 0, "message": {"role": "assistant", "content": content}, **STOP, **more}


# --- errors


@pytest.mark.parametrize("told", IN_PLACE)
@pytest.mark.parametrize("choices", [None, [], [_choice("")], [_choice(None)]])
def test_an_error_in_place_of_an_answer_is_none(told, choices):
    body = told if choices is None else {**told, "choices": choices}
    with pytest.raises(InvalidResponse):
        _whole(body)


@pytest.mark.parametrize("told", IN_PLACE)
def test_an_error_in_place_of_a_piece_ends_the_stream(told):
    for chunk in (told, {**told, "choices": []}, {**told, **_piece("", "stop")}):
        with pytest.raises(InvalidResponse):
            _streamed(_piece("Par"), chunk, _piece(finish="stop"))


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_within_a_choice_is_no_answer(error):
    for content in ("", PARIS, None):
        with pytest.raises(InvalidResponse, match="within a choice"):
            _whole({"choices": [_choice(content, error=error)]})
        held = {"content": content, "error": error}
        with pytest.raises(InvalidResponse, match="within a choice"):
            _whole({"choices": [{"message": held, **STOP}]})
    for text in ("", "ris"):
        with pytest.raises(InvalidResponse, match="an error within"):
            _streamed(_piece("Pa"), _piece(text, error=error), _piece(finish="stop"))
        held = {"choices": [{"delta": {"content": text, "error": error}}]}
        with pytest.raises(InvalidResponse, match="an error within"):
            _streamed(_piece("Pa"), held, _piece(finish="stop"))


@pytest.mark.parametrize("told", [{"status": 503}, {"code": "502"}])
def test_the_status_of_an_error_beside_an_answer_is_named(told):
    with pytest.raises(InvalidResponse, match="the status of an error in a successful answer"):
        _whole({**told, "choices": [_choice()]})


@pytest.mark.parametrize(
    ("told", "refused"),
    [
        ({"message": "gone"}, True),
        ({"msg": "gone", "id": "1", "object": "chunk", "created": 1, "model": "m"}, True),
        ({"message": "thinking", "progress": 3}, False),
        ({"message": 3}, False),
    ],
)
def test_an_event_with_a_message_alone_is_an_error(told, refused):
    if refused:
        with pytest.raises(InvalidResponse, match="an error in place of an answer"):
            _streamed(_piece(PARIS), told, _piece(finish="stop"))
    else:
        assert _streamed(_piece(PARIS), told, _piece(finish="stop")).text == PARIS


@pytest.mark.parametrize("fine", [{"error": None}, {"error": False}, {"error": ""}])
@pytest.mark.parametrize("at", ["body", "choice"])
def test_no_error_beside_an_answer_is_none(fine, at):
    body, choice = (fine, {}) if at == "body" else ({}, fine)
    assert _whole({"choices": [_choice(**choice)], **body}).text == PARIS
    piece = {**_piece(PARIS, **choice), **body}
    assert _streamed(piece, _piece(finish="stop")).text == PARIS


@pytest.mark.parametrize(
    "more",
    [
        {"detail": "cached"},
        {"code": 0},
        {"code": 200},
        {"status": "ok"},
        {"status": 200, "message": "success"},
        {"type": "message"},
        {"errors": []},
        {"code": "0"},
        {"code": "success"},
    ],
)
def test_other_uses_of_such_fields_cost_no_answer(more):
    assert _whole({**more, "choices": [_choice()]}).text == PARIS


@pytest.mark.parametrize(
    "name", ["error", "Error", " ERROR ", "stream.error", "response.failed", "exception", "aborted"]
)
@pytest.mark.parametrize("data", [b"data: {}\n\n", b'data: {"text": "x"}\n\n', b"\n", b""])
def test_an_event_that_is_called_an_error_is_one(name, data):
    event = f"event: {name}\n".encode() + data
    with pytest.raises(InvalidResponse, match="an event that names an error"):
        _streamed(_piece("Par"), event, _piece(finish="stop"))
    with pytest.raises(InvalidResponse, match="an event that names an error"):
        _streamed(_piece(PARIS, "stop"), event)


def test_the_data_of_an_error_event_are_quoted():
    with pytest.raises(InvalidResponse, match="names an error: upstream went away"):
        _streamed(b'event: error\ndata: {"message": "upstream went away"}\n\n')
    with pytest.raises(InvalidResponse, match="names an error"):
        _streamed(b'data: {"choices": []}\nevent: error\n\n', _piece(PARIS, "stop"))


@pytest.mark.parametrize("name", ["message", "reasoning.delta", "chunk", "ping", "errata"])
def test_own_events_of_a_gateway_are_ignored(name):
    own = f'event: {name}\ndata: {{"text": "let me think"}}\n\n'.encode()
    assert (
        _streamed(own, _piece("Par"), own, _piece("is"), own, _piece(finish="stop")).text == PARIS
    )


def test_what_is_behind_done_changes_nothing():
    stream = _events(_piece(PARIS, "stop"), b"data: [DONE]\n\n", b"event: error\ndata: {}\n\n")
    answer = StreamedAnswer()
    answer.feed(stream, 1.0)
    assert answer.finish().text == PARIS


# --- choices


def _indexed(*indexes):
    return [_choice() if index is None else _choice(index=index) for index in indexes]


@pytest.mark.parametrize("indexes", [(0, 0), (1, 1, 0), (0, 1, 1), (0, 2, 0)])
def test_two_choices_with_one_index_are_no_answer(indexes):
    choices = _indexed(*indexes)
    with pytest.raises(InvalidResponse, match="2 choices with the index"):
        _whole({"choices": choices})
    pieces = [{"index": i, "delta": {"content": "x"}} for i in indexes]
    with pytest.raises(InvalidResponse, match="2 choices with the index"):
        _streamed({"choices": pieces}, _piece(finish="stop"))


def test_two_choices_without_an_index_are_no_answer():
    bare = {"message": {"content": PARIS}, **STOP}
    pieces = [{"delta": {"content": "Pa"}}, {"delta": {"content": "ris"}, "index": None}]
    with pytest.raises(InvalidResponse, match="2 choices with the index 0"):
        _whole({"choices": [bare, bare]})
    with pytest.raises(InvalidResponse, match="2 choices with the index 0"):
        _streamed({"choices": pieces}, _piece(finish="stop"))


@pytest.mark.parametrize("index", ["x", 1.5, [0]])
def test_an_index_that_is_no_number_is_refused_with_the_body(index):
    said = f"the index of a choice is no number: .*{re.escape(json.dumps(index))}"
    with pytest.raises(InvalidResponse, match=said):
        _whole({"choices": [_choice(index=index)]})


@pytest.mark.parametrize(
    "events",
    [
        [{"choices": []}, {"choices": [], "finish_reason": "stop"}],
        [{"choices": [{"index": 1, "delta": {"content": "x"}, **STOP}]}],
        [{"choices": None, "usage": {"completion_tokens": 3}}],
        [{"text": "Paris", "finish_reason": "stop"}],
    ],
)
def test_a_finished_stream_without_the_choice_is_no_answer(events):
    with pytest.raises(InvalidResponse):
        _streamed(*events, b"data: [DONE]\n\n")


# --- texts in other fields

PARTS = [{"type": "text", "text": "Par"}, {"type": "text", "text": "is"}]
ELSEWHERE = {
    "text beside null": {"message": {"content": None}, "text": PARIS},
    "text beside nothing": {"message": {}, "text": PARIS},
    "delta": {"delta": {"content": PARIS}},
    "delta beside an empty message": {"message": {"content": ""}, "delta": {"content": PARIS}},
    "parts": {"message": {"content": PARTS}},
    "texts": {"message": {"content": ["Par", "is"]}},
    "one part": {"message": {"content": {"type": "text", "text": PARIS}}},
    "output parts": {"message": {"content": [{"type": "output_text", "text": PARIS}]}},
    "gemini": {"message": {"content": {"parts": [{"text": PARIS}], "role": "model"}}},
    "text in a message": {"message": {"content": None, "text": PARIS}},
    "content": {"content": PARIS},
    "a message that is a text": {"message": PARIS},
    "a delta that is a text": {"delta": PARIS},
    "the same twice": {"message": {"content": ""}, "text": PARIS, "delta": {"content": PARIS}},
}


@pytest.mark.parametrize("choice", ELSEWHERE.values(), ids=ELSEWHERE)
@pytest.mark.parametrize("index", [{}, {"index": 0}, {"index": "0"}])
def test_a_text_in_a_field_of_certain_meaning_is_read(choice, index):
    assert _whole({"choices": [{**choice, **index, **STOP}]}).text == PARIS
    assert _streamed({"choices": [{**choice, **index, **STOP}]}).text == PARIS
    assert _streamed({"choices": [{**choice, **index}]}, _piece(finish="stop")).text == PARIS


@pytest.mark.parametrize(
    "pieces",
    [
        [{"message": {"content": "Par"}}, {"message": {"content": "is"}}],
        [{"delta": {}, "text": "Par"}, {"delta": {}, "text": "is"}],
        [{"delta": {"content": ""}, "text": "Par"}, {"delta": {"content": None}, "text": "is"}],
        [{"delta": {"content": [PARTS[0]]}}, {"delta": {"content": [PARTS[1]]}}],
        [{"delta": "Par"}, {"delta": "is"}],
        [{"delta": {"text": "Par"}}, {"delta": {"text": "is"}}],
        [{"content": "Par"}, {"content": "is"}],
    ],
)
def test_pieces_in_another_field_are_joined(pieces):
    said = _streamed(*({"choices": [{"index": 0, **one}]} for one in pieces), _piece("", "stop"))
    assert said.text == PARIS


def test_the_times_of_such_pieces_are_kept():
    answer = StreamedAnswer()
    for now, text in ((1.0, "Par"), (2.0, "is")):
        answer.feed(_events({"choices": [{"message": {"content": text}}]}), now)
    answer.feed(_events(_piece(finish="stop")), 3.0)
    assert answer.finish().text == PARIS
    assert (answer.first_at, answer.last_at) == (1.0, 2.0)


@pytest.mark.parametrize(
    "pieces", [["Par", "Paris"], ["1", "10"], ["Paris", "Paris"], ["P", "Pa", "Par"]]
)
def test_pieces_that_may_each_be_the_whole_are_refused(pieces):
    chunks = [{"choices": [{"message": {"content": text}}]} for text in pieces]
    with pytest.raises(InvalidResponse, match=r"'message.content' .* may be the rest"):
        _streamed(*chunks, _piece(finish="stop"))


@pytest.mark.parametrize(
    "beside", [{"text": PARIS}, {"message": {"content": PARIS}}, {"message": {"content": "Par"}}]
)
def test_a_summary_beside_the_pieces_is_not_read_twice(beside):
    end = {"choices": [{"index": 0, "delta": {}, **beside, **STOP}]}
    assert _streamed(_piece("Par"), _piece("is"), end).text == PARIS


def test_a_rest_of_the_text_in_another_field_is_not_lost_in_silence():
    with pytest.raises(InvalidResponse, match="two texts"):
        _streamed(_piece("Par"), {"choices": [{"delta": {}, "text": "is"}]}, _piece(finish="stop"))


def test_a_rest_of_the_text_in_a_message_is_not_lost_in_silence():
    with pytest.raises(InvalidResponse, match="two texts"):
        _streamed(_piece("Par"), {"choices": [{"delta": {}, "message": {"content": "is"}, **STOP}]})


def test_the_stop_string_of_an_odd_answer_is_kept():
    choice = {**ELSEWHERE["parts"], **STOP, "stop_reason": "\n"}
    assert _whole({"choices": [choice]}).stop_reason == "\n"


def test_different_texts_in_two_fields_are_refused():
    choice = {"message": {"content": None}, "text": "Paris", "delta": {"content": "Rome"}, **STOP}
    with pytest.raises(InvalidResponse, match=r"different texts in its fields delta.content and"):
        _whole({"choices": [choice]})


UNREAD = [
    ("message.answer", {"message": {"content": None, "answer": PARIS}}),
    ("message.output_text", {"message": {"content": "", "output_text": PARIS}}),
    ("choices[0].output", {"message": {"content": None}, "output": PARIS}),
    ("choices[0].generated_text", {"message": {"content": None}, "generated_text": PARIS}),
    ("choices[0].result", {"message": {"content": ""}, "result": {"text": PARIS}}),
    ("message.parts", {"message": {"content": None, "parts": [{"text": PARIS}]}}),
    ("delta.output", {"delta": {"output": PARIS}}),
]


@pytest.mark.parametrize(("place", "choice"), UNREAD)
def test_a_text_in_a_field_of_unknown_meaning_is_named(place, choice):
    with pytest.raises(InvalidResponse) as caught:
        _whole({"choices": [{**choice, **STOP}]})
    assert repr(place) in str(caught.value)
    with pytest.raises(InvalidResponse) as caught:
        _streamed({"choices": [choice]}, _piece(finish="stop"))
    assert repr(place) in str(caught.value)


@pytest.mark.parametrize("name", ["output_text", "response", "content", "text", "generated_text"])
def test_a_text_beside_the_choices_is_named(name):
    with pytest.raises(InvalidResponse, match=f"'{name}'"):
        _whole({"choices": [_choice(None)], name: PARIS})


EMPTY = [
    {"message": {"content": None}},
    {"message": {"content": ""}},
    {"message": {"content": []}},
    {"message": {}},
    {"text": ""},
    {"message": {"content": "", "role": "assistant", "id": "msg_1", "annotations": []}},
    {"message": {"content": None, "tool_calls": []}, "native_finish_reason": "STOP"},
    {"message": {"content": ""}, "matched_stop": 2, "provider": "x", "logprobs": None},
    {"message": {"content": "", "reasoning_details": [{"type": "t", "text": "hm"}]}},
    {"message": {"content": ""}, "mm_embedding_handle": "abc", "request_id": "abc"},
]


@pytest.mark.parametrize("choice", EMPTY)
def test_a_truly_empty_answer_is_an_answer(choice):
    told = {"id": "c-1", "model": "m", "system_fingerprint": "fp", "service_tier": "default"}
    assert _whole({**told, "choices": [{**choice, **STOP}]}).text == ""
    assert _streamed({**told, "choices": [{**choice, **STOP}]}).text == ""


def test_thoughts_are_no_text_wherever_they_are():
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, *PARTS]
    said = _whole({"choices": [_choice(parts)]})
    assert (said.text, said.reasoning) == (PARIS, "hm")
    said = _whole({"choices": [{"message": {"content": "", "thinking": "hm"}, **STOP}]})
    assert (said.text, said.reasoning) == ("", "hm")


def test_the_one_call_of_the_older_form_is_read():
    call = {"name": "f", "arguments": '{"a": 1}'}
    choice = {"message": {"content": None, "function_call": call}, "finish_reason": "function_call"}
    [found] = _whole({"choices": [choice]}).tool_calls
    assert (found.name, found.arguments) == ("f", '{"a": 1}')
    pieces = [{"name": "f", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ": 1}"}]
    chunks = ({"choices": [{"index": 0, "delta": {"function_call": one}}]} for one in pieces)
    [found] = _streamed(*chunks, _piece(finish="function_call")).tool_calls
    assert (found.name, found.arguments) == ("f", '{"a": 1}')


def test_calls_and_a_refusal_beside_parts_are_read():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"content": PARTS, "tool_calls": [call], "refusal": "I will not"}
    said = _whole({"choices": [{"message": message, **STOP}]})
    [found] = said.tool_calls
    assert (said.text, found.name, found.arguments) == (PARIS, "f", "{}")
    assert said.refusal == "I will not"
    said = _streamed({"choices": [{"index": 0, "delta": message, **STOP}]})
    assert ([one.name for one in said.tool_calls], said.refusal) == (["f"], "I will not")


# --- usage


USED = {"prompt_tokens": 12, "completion_tokens": 3}


@pytest.mark.parametrize(
    "body",
    [
        {"usage": USED},
        {"choices": [_choice(usage=USED)]},
        {"x_groq": {"id": "r", "usage": USED}},
        {"usage": None, "x_groq": {"usage": USED}},
        {"choices": [{"message": {"content": PARIS, "usage": USED}, **STOP}]},
        {"usage": {"input_tokens": 12, "output_tokens": 3}},
        {"usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 3}},
        {"timings": {"prompt_n": 10, "cache_n": 2, "predicted_n": 3, "predicted_ms": 1.5}},
        {"usage": {}, "choices": [_choice(usage=USED)]},
    ],
)
def test_token_counts_are_read_wherever_servers_put_them(body):
    said = _whole({"choices": [_choice()], **body})
    assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (12, 3)
    moved = {**body}
    if "choices" in moved:
        [choice] = moved.pop("choices")
        held = choice.get("usage", choice["message"].get("usage"))
        end = {**_piece(finish="stop", usage=held), **moved}
    else:
        end = {**_piece(finish="stop"), **moved}
    said = _streamed(_piece(PARIS), end)
    assert (said.text, said.usage.prompt_tokens, said.usage.completion_tokens) == (PARIS, 12, 3)


@pytest.mark.parametrize(
    ("usage", "hidden", "shown"),
    [
        (
            {"completion_tokens": 460, "completion_tokens_details": {"reasoning_tokens": 448}},
            448,
            12,
        ),
        ({"completion_tokens": 460, "reasoning_tokens": 448}, 448, 12),
        ({"output_tokens": 460, "output_tokens_details": {"reasoning_tokens": 448}}, 448, 12),
        (
            {"completion_tokens": 12, "completion_tokens_details": {"reasoning_tokens": 448}},
            448,
            12,
        ),
        ({"completion_tokens": 12, "completion_tokens_details": None}, 0, 12),
        ({"completion_tokens": 12, "completion_tokens_details": {"reasoning_tokens": "x"}}, 0, 12),
        ({"completion_tokens": 12, "completion_tokens_details": [1]}, 0, 12),
        ({"completion_tokens": 12}, 0, 12),
    ],
)
def test_hidden_thoughts_are_counted_apart(usage, hidden, shown):
    found = _whole({"choices": [_choice()], "usage": usage}).usage
    assert (found.reasoning_tokens or 0, found.shown_tokens) == (hidden, shown)


# --- anything


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 600) | st.sampled_from(["", PARIS, "error", "stop"]),
    lambda x: (
        st.lists(x, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "message", "delta", "text", "content", "error", "detail"),
                    *("status", "code", "type", "usage", "index", "finish_reason", "tool_calls"),
                    *("function_call", "reasoning", "refusal", "parts", "x_groq"),
                ]
            ),
            x,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(_JSON, _JSON)
def test_anything_is_an_answer_or_an_invalid_response(one, other):
    for body in (one, {"choices": [one]}, {"choices": [{"message": one, **STOP}], "usage": other}):
        for read in (lambda: _whole(body), lambda: _streamed(body, other, _piece("", "stop"))):  # noqa: B023
            with suppress(InvalidResponse):
                said = read()
                assert isinstance(said.text, str)
                assert said.finish_reason


# --- through a socket


def _send(body, *, stream):
    content = "text/event-stream" if stream else "application/json"

    def reply(request):
        return raw(body, content_type=content)

    async def main():
        async with ScriptedServer(reply).serve() as url:
            limits = Limits(max_attempts=1, stream=stream)
            async with Client(Endpoint(base_url=url, model="m"), limits) as client:
                prompt = (Message(role="user", content="Hi"),)
                sampling = SamplingParams(max_tokens=5)
                return await client.send(Request(sample_id="1", prompt=prompt, sampling=sampling))

    return asyncio.run(main())


def test_a_client_scores_neither_errors_nor_lost_texts():
    bad = _events(_piece("Par"), b'event: error\ndata: {"message": "gone"}\n\n', _piece("", "stop"))
    found = _send(bad, stream=True)
    assert isinstance(found, Failure)
    assert (found.kind, found.message) == (
        FailureKind.INVALID_RESPONSE,
        "the stream has an event that names an error: gone",
    )
    whole = json.dumps({"choices": [{"message": {"content": None}, "text": PARIS, **STOP}]})
    answered = _send(whole.encode(), stream=False)
    assert isinstance(answered, Response)
    assert answered.text == PARIS


@pytest.mark.parametrize(
    "coding", ["gzip", "gzip, chunked", "foo", "chunked, foo", "Chunked;q=1", "br"]
)
async def test_an_odd_transfer_encoding_is_no_answer_and_takes_no_time_limit(coding):
    """The server keeps the connection open, so that waiting for an end would last for ever."""
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: {coding}\r\n\r\n"
    )

    async def odd(reader, writer):
        body = b'{"choices": [{"text": "A", "finish_reason": "stop"}]}'
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(head.encode() + body)
                    await writer.drain()
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(odd, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        limits = Limits(max_attempts=1, stall_timeout_s=60.0, sample_timeout_s=60.0)
        async with asyncio.timeout(30), Client(Endpoint(base_url=url), limits) as client:
            sampling = SamplingParams(max_tokens=2)
            result = await client.send(Request(sample_id="1", prompt="p", sampling=sampling))
    assert isinstance(result, Failure)
    assert result.kind is FailureKind.INVALID_RESPONSE, result.message
