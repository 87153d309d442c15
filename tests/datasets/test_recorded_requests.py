"""Requests are read from the envelopes of every gateway, and no line goes without a word."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.datasets.masked_fields import mask_body, read_paths
from serve_eval.datasets.recorded_requests import (
    hash_body,
    read_log,
    read_request,
    refuse_broken,
)
from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import RecordedBody, Route

CHAT, COMPLETIONS, RESPONSES = Route.CHAT, Route.COMPLETIONS, Route.RESPONSES
TURNS = [{"role": "user", "content": "Hi"}]
BODY = {"model": "m", "messages": TURNS, "max_tokens": 5, "stream": True}
ASKED = {"messages": TURNS, "max_tokens": 5, "stream": True}
TOLD = {"choices": [{"message": {"content": "Hello"}}]}


@pytest.mark.parametrize(
    ("line", "route", "fields", "at_s", "answer"),
    [
        (BODY, CHAT, ASKED, None, None),
        ({"model": "m", "prompt": "A"}, COMPLETIONS, {"prompt": "A"}, None, None),
        ({"model": "m", "prompt": [1, 2]}, COMPLETIONS, {"prompt": [1, 2]}, None, None),
        ({"model": "m", "input": "A"}, RESPONSES, {"input": "A"}, None, None),
        (
            {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": BODY},
            *(CHAT, ASKED, None, None),
        ),
        (
            {"request": BODY, "response": TOLD, "timestamp": 1700000000500},
            *(CHAT, ASKED, 1700000000.5, "Hello"),
        ),
        (
            {"request": {"url": "https://h/v1/chat/completions?x=1", "body": json.dumps(BODY)}},
            *(CHAT, ASKED, None, None),
        ),
        (
            {
                "event": "request",
                "trace_id": "t",
                "recorded_at": "2026-11-30T10:00:00+00:00",
                "server_arrival_time": 7.5,
                "route": "/v1/completions",
                "headers": [["authorization", "Bearer x"]],
                "body": {"model": "m", "prompt": "A", "max_tokens": 3},
            },
            *(COMPLETIONS, {"prompt": "A", "max_tokens": 3}, 1796032800.0, None),
        ),
        (
            {
                "call_type": "acompletion",
                "model": "m",
                "messages": TURNS,
                "model_parameters": {"max_tokens": 5, "temperature": 0.5, "tools": None},
                "stream": True,
                "response": TOLD,
                "startTime": 1700000000.25,
            },
            *(CHAT, {**ASKED, "temperature": 0.5}, 1700000000.25, "Hello"),
        ),
        (
            {
                "request_path": "/v1/chat/completions",
                "request_body": BODY,
                "response_body": json.dumps(TOLD),
                "request_created_at": "2026-11-30T10:00:00Z",
            },
            *(CHAT, ASKED, 1796032800.0, "Hello"),
        ),
        (
            {
                "type": "GENERATION",
                "input": TURNS,
                "output": {"role": "assistant", "content": "Hello"},
                "modelParameters": {"max_tokens": 5},
                "startTime": "2026-11-30T10:00:00Z",
            },
            *(CHAT, {"messages": TURNS, "max_tokens": 5}, 1796032800.0, "Hello"),
        ),
        (
            {"input": {"messages": TURNS, "max_tokens": 5}, "output": "Hello"},
            *(CHAT, {"messages": TURNS, "max_tokens": 5}, None, "Hello"),
        ),
    ],
)
def test_a_request_is_found_in_every_envelope(line, route, fields, at_s, answer):
    found = read_request(line, 3)
    assert (found.line, found.body.route, dict(found.body.fields)) == (3, route, fields)
    assert (found.at_s, found.answer) == (at_s, answer)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ('{"model": "m"}', "no messages, prompt or input"),
        ('{"url": "/v1/embeddings", "body": {"input": "A"}}', "/v1/embeddings is not the route"),
    ],
)
def test_a_broken_line_is_named_with_its_number(tmp_path, line, reason):
    file = tmp_path / "log.jsonl"
    file.write_text(f"{json.dumps(BODY)}\n\n{line}\n")
    log = read_log(file)
    assert [one.line for one in log.requests] == [1]
    with pytest.raises(
        DatasetError, match=f"lines that are no request: 1 of 2:\n  line 3: .*{reason}"
    ):
        refuse_broken(log)


def test_a_file_without_a_request_says_what_a_line_is(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text("x\n")
    with pytest.raises(DatasetError, match=r"no line is a request:\n  line 1: not valid JSON"):
        read_log(file)
    with pytest.raises(DatasetError, match="cannot be read"):
        read_log(tmp_path / "none.jsonl")


def test_the_answer_of_a_trace_joins_its_request(tmp_path):
    file = tmp_path / "trace.jsonl"
    rows = [
        {"event": "request", "trace_id": "t1", "route": "/v1/chat/completions", "body": BODY},
        {"event": "response", "trace_id": "t1", "payload": TOLD},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_log(file)
    assert ([one.answer for one in log.requests], log.broken) == (["Hello"], ())


def test_equal_bodies_are_duplicates_whatever_their_order_and_model(tmp_path):
    file = tmp_path / "log.jsonl"
    rows = [BODY, {**dict(reversed(BODY.items())), "model": "other"}, {**BODY, "max_tokens": 6}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_log(file).duplicates == 1


PERSON = {
    "user": "ann",
    "metadata": {"email": "ann@x.org", "age": 4, "vip": True},
    "messages": [{"role": "user", "name": "ann", "content": "Hi"}, {"role": "user"}],
}


@pytest.mark.parametrize(
    ("path", "place", "masked"),
    [
        ("user", ("user",), "***"),
        ("metadata.email", ("metadata", "email"), "***"),
        ("metadata.*", ("metadata", "age"), 0),
        ("messages[*].name", ("messages", 0, "name"), "***"),
        ("messages[0].content", ("messages", 0, "content"), "***"),
        ("messages", ("messages", 0, "role"), "***"),
    ],
)
def test_the_fields_of_a_path_are_masked_and_no_others(path, place, masked):
    body, count = mask_body(RecordedBody(route=CHAT, fields=PERSON), read_paths([path]))
    found, old = body.fields, PERSON
    for key in place:
        found, old = found[key], old[key]
    assert found == masked != old
    assert count >= 1
    if path == "metadata.email":
        assert {**body.fields, "metadata": PERSON["metadata"]} == PERSON


def test_a_key_is_masked_wherever_it_stands():
    text = "use sk-proj-9aB3dE7fG1hJ5kL2mN8pQ please"
    body = RecordedBody(route=CHAT, fields={"messages": [{"role": "user", "content": text}]})
    masked, count = mask_body(body, ())
    assert masked.fields["messages"][0]["content"] == "use *** please"
    assert count == 1


@pytest.mark.parametrize("path", ["", "a..b", "[*", "a b", ".a"])
def test_a_text_that_is_no_path_is_refused(path):
    with pytest.raises(PlanError, match="is not a path"):
        read_paths([path])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["prompt", "a", "b"]), VALUES))
def test_any_json_object_is_a_request_or_named(fields):
    with suppress(ValueError):
        found = read_request(fields, 1)
        assert found.body.fields["prompt"] == fields["prompt"]
        assert hash_body(found.body)
