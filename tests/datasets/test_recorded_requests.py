"""Requests are read from the envelopes of every gateway, and no line goes without a word."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.datasets.recorded_requests import (
    USUAL_FIELDS,
    hash_body,
    list_uncompared,
    mask_body,
    read_log,
    read_paths,
    read_patterns,
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


HTTP = "/v1/chat/completions"
STREAM = "".join(
    f"data: {json.dumps({'choices': [{'delta': {'content': part}}]})}\n\n" for part in ("Hel", "lo")
)
AT = 1796032800.0
OTHER_ENVELOPES = [
    (  # nginx with escape=json
        {
            "time_local": "30/Nov/2026:10:00:00 +0000",
            "request": f"POST {HTTP} HTTP/1.1",
            "request_time": 2.25,
            "request_body": json.dumps(BODY),
        },
        *(CHAT, ASKED, AT, None),
    ),
    (  # envoy, a time in text and a streamed answer
        {
            "start_time": "2026-11-30T10:00:00.000Z",
            "path": f"{HTTP}?api-version=1",
            "request_headers": {"authorization": "Bearer x", "messages": []},
            "request_body": json.dumps(BODY),
            "response_body": STREAM,
        },
        *(CHAT, ASKED, AT, "Hello"),
    ),
    (  # APISIX and Kong
        {
            "request": {"method": "POST", "uri": "/llm", "body": json.dumps(BODY)},
            "response": {"status": 200, "body": json.dumps(TOLD)},
            "start_time": 1796032800000,
        },
        *(CHAT, ASKED, AT, "Hello"),
    ),
    (  # a line of docker around that of a gateway
        {
            "log": json.dumps({"msg": "call", "data": {"payload_in": BODY}}) + "\n",
            "stream": "stdout",
        },
        *(CHAT, ASKED, None, None),
    ),
    (  # an inference table
        {"request": json.dumps(BODY), "response": json.dumps(TOLD), "timestamp_ms": 1796032800000},
        *(CHAT, ASKED, AT, "Hello"),
    ),
    (  # LangSmith
        {
            "run_type": "llm",
            "inputs": {"messages": TURNS},
            "extra": {"invocation_params": {"model": "m", "max_tokens": 5, "stream": True}},
            "outputs": TOLD,
            "start_time": "2026-11-30T10:00:00",
        },
        *(CHAT, ASKED, AT, "Hello"),
    ),
    (  # a gateway with relative paths, and a line of AIPerf
        {"path": "chat/completions", "request": json.dumps(BODY), "response": json.dumps(TOLD)},
        *(CHAT, ASKED, None, "Hello"),
    ),
    ({"timestamp": 250, **BODY}, CHAT, ASKED, 250, None),
    (  # Dynamo
        {
            "event_type": "request_payload",
            "event_time_unix_ms": 1796032800000,
            "payload": {
                "endpoint": "openai.chat_completions",
                "request": BODY,
                "response": TOLD,
                "http_request_headers": {"messages": []},
            },
        },
        *(CHAT, ASKED, AT, "Hello"),
    ),
    (  # a table of Langfuse, with its JSON as texts
        {
            "type": "GENERATION",
            "input": json.dumps(TURNS),
            "output": json.dumps({"role": "assistant", "content": "Hello"}),
            "modelParameters": json.dumps({"max_tokens": 5}),
        },
        *(CHAT, {"messages": TURNS, "max_tokens": 5}, None, "Hello"),
    ),
    (  # spans of OpenInference
        {"attributes": {"input.value": json.dumps(BODY), "output.value": json.dumps(TOLD)}},
        *(CHAT, ASKED, None, None),
    ),
    (  # one entry of a HAR file, and a recording of a test
        {
            "time": 50,
            "startedDateTime": "2026-11-30T10:00:00Z",
            "request": {"url": f"http://h{HTTP}", "postData": {"text": json.dumps(BODY)}},
        },
        *(CHAT, ASKED, AT, None),
    ),
    (  # a function behind a gateway of AWS
        {
            "path": "/prod/v1/chat/completions",
            "body": base64.b64encode(json.dumps(BODY).encode()).decode(),
            "isBase64Encoded": True,
        },
        *(CHAT, ASKED, None, None),
    ),
    (  # the body that a proxy keeps beside what it made of it
        {"model": "m", "metadata": {"prompt": "v1"}, "proxy": {"upstream": {"sent": BODY}}},
        *(CHAT, ASKED, None, None),
    ),
]


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
        *OTHER_ENVELOPES,
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
        ('{"model": "m"}', "no messages, prompt or input in it; its fields: model"),
        (json.dumps({"request_body": json.dumps(BODY)[:-9]}), "request_body is cut: no whole JSON"),
        (
            json.dumps({"log": {"entries": [{"r": BODY}, {"r": BODY}]}}),
            r"2 .* -c '.log.entries\[\]'",
        ),
        (json.dumps({**BODY, "system": "Be brief."}), "Anthropic"),
        (json.dumps({"messages": [{"content": "redacted-by-litellm"}]}), "are redacted"),
        (json.dumps({"messages": [[{"content": "Hi"}]]}), "objects with a role"),
        ('{"input": "Hi", "output": "Hello"}', "no route is logged: add a url"),
        ("INFO 11-30 Received request cmpl-1: prompt: 'A'", "not valid JSON"),
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


NAMES = st.text("abcdefgh_", min_size=1, max_size=8).filter(lambda name: name != "body")


@given(st.lists(st.tuples(NAMES, st.sampled_from(["object", "text", "list"])), max_size=6))
def test_a_body_is_found_at_any_depth_and_under_any_name(nest):
    line = BODY
    for name, form in nest:
        inner = {"object": line, "text": json.dumps(line), "list": [3, line]}[form]
        line = {"id": 7, name: inner, f"{name}_2": "GET"}
    assert dict(read_request(line, 1).body.fields) == ASKED


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"prompt": [[1, 2]], "echo": True, "logprobs": 1}, ["requests for log-probabilities: 1"]),
        ({"prompt": ["A", "B"]}, ["requests for several answers: 1"]),
        ({"prompt": [1, 2], "n": 1, "logprobs": None, "echo": False}, []),
        ({"messages": TURNS, "n": 2, "logprobs": True}, ["requests for several", "requests for l"]),
        ({"messages": TURNS, "logprobs": False}, []),
    ],
)
def test_what_is_not_compared_is_said(fields, told):
    lines = list_uncompared([RecordedBody(route=CHAT, fields=fields)])
    assert len(lines) == len(told)
    assert all(line.startswith(start) for line, start in zip(lines, told, strict=True))


def test_a_file_may_be_one_array(tmp_path):
    for text in (json.dumps([BODY, {"input": BODY}, 3]), json.dumps([BODY, BODY, 3], indent=1)):
        file = tmp_path / "export.json"
        file.write_text(text)
        log = read_log(file)
        assert [one.line for one in log.requests] == [1, 2]
        assert [(one.line, one.reason) for one in log.broken] == [(3, "not a JSON object")]
        assert log.source.sha256 == hashlib.sha256(text.encode()).hexdigest()
    file.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(DatasetError, match="compressed; unpack the file"):
        read_log(file)


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


CALL = {"function": {"name": "send", "arguments": '{"to": "ann@x.org", "n": 2}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
TALK = {
    "messages": [
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "user", "content": [{"type": "text", "text": "Write to bob@x.org."}, IMAGE]},
    ],
    "extra_headers": {"Authorization": "Bearer x"},
    "api_key": "local",
}


@pytest.mark.parametrize(
    ("paths", "patterns", "gone"),
    [
        (["messages[*].tool_calls[*].function.arguments.to"], [], ["ann@x.org"]),
        (["messages[*].content[*].image_url.url"], [], ["iVBOR"]),
        ([], [r"[\w.]+@[\w.]+\w"], ["ann@x.org", "bob@x.org"]),
        (USUAL_FIELDS, [], ["Bearer x", "local"]),
    ],
)
def test_what_is_masked_is_gone_and_the_rest_stays(paths, patterns, gone):
    before = RecordedBody(route=CHAT, fields=TALK)
    body, count = mask_body(before, read_paths(paths), read_patterns(patterns))
    marks = ["ann@x.org", "bob@x.org", "iVBOR", "Bearer x", "local", "send", "Write to"]
    kept = json.dumps(body.fields)
    assert [mark for mark in marks if mark not in kept] == gone
    assert count == len(gone)
    arguments = body.fields["messages"][0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments)["n"] == 2


@pytest.mark.parametrize("pattern", ["(", "a*"])
def test_a_pattern_that_is_none_or_matches_nothing_is_refused(pattern):
    with pytest.raises(PlanError, match="mask_patterns"):
        read_patterns([pattern])


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
