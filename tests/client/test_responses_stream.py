"""Test the event streams of /v1/responses, in the forms of OpenAI and of three servers."""

import json

import pytest

from serve_eval.client.wire_format.refusal import InvalidResponse
from serve_eval.client.wire_format.responses_stream import ResponsesStream
from serve_eval.schema import Failure, ToolCall
from tests.client.test_responses import CALL, MESSAGE, REASONING, ask, whole
from tests.scripted_server import json_reply, stream

CREATED = {"type": "response.created", "response": whole(status="in_progress", usage=None)}


def delta(text, kind="output_text", **fields):
    return {"type": f"response.{kind}.delta", "delta": text, "output_index": 0, **fields}


def ended(*output, kind="completed", **fields):
    return {"type": f"response.{kind}", "response": whole(*output, **fields)}


OPENAI = [
    CREATED,
    {"type": "response.in_progress", "response": whole(status="in_progress")},
    {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning"}},
    delta("France, ", "reasoning_text"),
    delta("so Paris.", "reasoning_text"),
    {"type": "response.output_item.done", "output_index": 0, "item": REASONING},
    {"type": "response.output_item.added", "output_index": 1, "item": {"type": "message"}},
    delta("Par", output_index=1),
    delta("is.", output_index=1),
    {"type": "response.output_text.done", "output_index": 1, "text": "Paris."},
    {"type": "response.output_item.done", "output_index": 1, "item": MESSAGE},
    ended(REASONING, MESSAGE),
]


def told(events, *, named=True):
    """Return the bytes of a stream: each event with the line of its name, and its data."""
    pieces = []
    for event in events:
        name = f"event: {event['type']}\n" if named and "type" in event else ""
        pieces.append(f"{name}data: {json.dumps(event)}\n\n".encode())
    return pieces


def read(events, **how):
    found = ResponsesStream()
    for second, piece in enumerate(told(events, **how)):
        found.feed(piece, float(second))
    return found, found.finish()


@pytest.mark.parametrize("named", [True, False])
def test_a_stream_in_the_form_of_openai_is_read(named):
    found, said = read(OPENAI, named=named)
    assert (said.text, said.reasoning, said.finish_reason, said.id) == (
        "Paris.",
        "France, so Paris.",
        "stop",
        "resp_1",
    )
    assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (12, 7)
    assert (found.first_at, found.last_at, found.done) == (3.0, 8.0, True)


def test_a_stream_may_be_cut_anywhere():
    whole_of_it, expected = b"".join(told(OPENAI)), read(OPENAI)[1]
    for size in (1, 7, 1000):
        found = ResponsesStream()
        for start in range(0, len(whole_of_it), size):
            found.feed(whole_of_it[start : start + size], 1.0)
        assert found.finish() == expected


def test_the_data_of_an_event_may_have_several_lines():
    lines = b"".join(
        b"data: " + line + b"\n" for line in json.dumps(OPENAI[-1], indent=1).encode().split(b"\n")
    )
    found = ResponsesStream()
    found.feed(lines + b"\n", 1.0)
    assert found.finish().text == "Paris."


def test_a_call_is_read():
    added = {**CALL, "arguments": "", "status": "in_progress"}
    events = [
        CREATED,
        {"type": "response.output_item.added", "output_index": 0, "item": added},
        delta('{"city": ', "function_call_arguments", item_id="fc_1"),
        delta('"Paris"}', "function_call_arguments", item_id="fc_1"),
        {"type": "response.output_item.done", "output_index": 0, "item": CALL},
    ]
    call = (ToolCall(name="get_weather", arguments='{"city": "Paris"}'),)
    for last in (ended(CALL), ended(), ended(output=None)):
        _, said = read([*events, last])
        assert (said.tool_calls, said.finish_reason, said.call_faults) == (call, "tool_calls", ())


def test_pieces_count_if_nothing_holds_the_whole():
    added = {**CALL, "arguments": ""}
    events = [
        delta("I "),
        delta("look."),
        delta("Hm.", "reasoning_summary_text"),
        {"type": "response.output_item.added", "output_index": 1, "item": added},
        delta("{}", "function_call_arguments", output_index=1),
        ended(output=None),
    ]
    _, said = read(events)
    assert (said.text, said.reasoning, said.finish_reason) == ("I look.", "Hm.", "tool_calls")
    assert said.tool_calls == (ToolCall(name="get_weather", arguments="{}"),)


@pytest.mark.parametrize(
    ("last", "finish"),
    [
        (ended(MESSAGE), "stop"),
        (ended(MESSAGE, kind="incomplete", status="incomplete"), "length"),
        (ended(MESSAGE, status="incomplete"), "length"),  # trtllm-serve and vLLM
    ],
)
def test_the_status_of_the_last_event_says_how_the_answer_ended(last, finish):
    assert read([CREATED, delta("Paris."), last])[1].finish_reason == finish


@pytest.mark.parametrize(
    ("events", "why"),
    [
        (OPENAI[:-1], "ended without an event that ends the answer"),
        ([], "ended without an event that ends the answer"),
        ([CREATED, {"type": "error", "message": "engine died"}], "engine died"),
        ([delta("4"), {"type": "response.error", "error": "engine died"}], "engine died"),
        (
            [delta("4"), ended(kind="failed", status="failed", error={"message": "no KV blocks"})],
            "no KV blocks",
        ),
        ([ended(kind="completed", status="failed", error={"message": "no KV"})], "no KV"),
        ([delta("4"), {"type": "response.completed"}], "does not hold it"),
        ([delta("5"), ended(MESSAGE)], "the stream has two texts"),
        ([{"type": 1}], "not a stream of /v1/responses"),
        ([{"type": "response.cancelled", "response": whole()}], "names an error"),
    ],
)
def test_a_stream_without_an_answer_is_refused(events, why):
    for named in (True, False):
        with pytest.raises(InvalidResponse, match=why):
            read(events, named=named)


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"choices": [{"delta": {"content": "4"}}]}\n\n',
        b"data: hello\n\n",
        b'data: {"type": "response.created",\n\n',
        b"event: error\n",
    ],
)
def test_other_streams_are_refused(data):
    said, _ = ask([stream([data])], stream=True)
    assert isinstance(said, Failure)


def test_spaces_around_the_whole_text_do_not_count():
    """trtllm-serve strips the whole text and not its pieces."""
    assert read([delta("\n\nParis."), delta(" "), ended(MESSAGE)])[1].text == "Paris."


def test_a_stream_over_a_socket_is_timed():
    pieces = told(OPENAI)
    said, server = ask([stream([*pieces, b"data: [DONE]\n\n"])], stream=True)
    assert (said.text, said.finish_reason) == ("Paris.", "stop")
    assert said.ttft_s is not None
    assert server.bodies[0]["stream"] is True
    assert "stream_options" not in server.bodies[0]


def test_a_cut_stream_is_a_failure_and_a_whole_body_is_none():
    said, _ = ask([stream(told(OPENAI[:-1]))], stream=True)
    assert isinstance(said, Failure)
    assert "without an event that ends the answer" in said.message
    said, _ = ask([json_reply(whole(MESSAGE))], stream=True)
    assert said.text == "Paris."
