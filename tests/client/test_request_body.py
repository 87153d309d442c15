"""Test the bodies of requests, and what is told of a server that refuses one."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.client import Client
from serve_eval.client.request import RequestEncoder
from serve_eval.client.transport import Disconnected
from serve_eval.client.wire_format import refusal, wire
from serve_eval.client.wire_format.refusal import find_refused, shorten
from serve_eval.client.wire_format.reply import Reply, TooLarge
from serve_eval.client.wire_format.wire import NeutralField, NeutralFields
from serve_eval.launchers._http.server import serve_app
from serve_eval.schema import (
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Message,
    Request,
    SamplingParams,
)

_PLAIN = SamplingParams(max_tokens=8)
_EXTRA = {"truncate_prompt_tokens": 4096}
_NEUTRAL = NeutralFields([NeutralField("top_k", -1, frozenset({"top_k"}), greedy=True)])
_KINDS = [
    (_PLAIN, _EXTRA, False),
    (replace(_PLAIN, stop=("\n", "</s>")), _EXTRA, False),
    (replace(_PLAIN, seed=7, temperature=0.5), {}, True),
    (_PLAIN, {"top_k": 3, "prompt": "that of the plan"}, False),
    (_PLAIN, {"model": "another"}, False),
]


@given(st.lists(st.tuples(st.sampled_from(_KINDS), st.text(), st.booleans()), max_size=12))
def test_the_body_of_a_request_does_not_depend_on_those_before(
    asked,
):
    encoder = RequestEncoder('a "model"', "max_tokens", "inline")
    for (sampling, extra, stream), prompt, neutral in asked:
        encoder.neutral = _NEUTRAL if neutral else encoder.neutral
        request = Request(sample_id="1", prompt=prompt, sampling=sampling, extra=extra)
        for one in (request, msgspec.structs.replace(request, prompt=prompt + "?")):
            said = encoder.encode_at_once(one, stream=stream)
            plain = wire.encode(one, 'a "model"', stream=stream, neutral=encoder.neutral)
            assert said == plain


def test_fields_of_one_request_and_chats_are_not_taken_for_those_of_others():
    encoder = RequestEncoder("m", "max_completion_tokens", "inline")
    text = Request(sample_id="1", prompt="a", sampling=_PLAIN, extra=_EXTRA)
    chat = msgspec.structs.replace(text, prompt=(Message(role="user", content="a"),))
    for _ in range(3):
        assert b'"prompt":"a"' in (encoder.encode_at_once(text) or b"")
        over = encoder.encode_at_once(text, over={"prompt": "b"}) or b""
        assert b'"prompt":"b"' in over
        body = encoder.encode_at_once(chat) or b""
        assert b'"max_completion_tokens":8' in body
        assert b'"prompt"' not in body


def _exchange(handler, method="POST", body=b"{}", **more):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)

    async def main():
        async with (
            serve_app(app) as url,
            Client(Endpoint(base_url=url), Limits(connect_timeout_s=5.0)) as client,
        ):
            return await client.exchange(method, "/any/path", body, **more)

    return asyncio.run(main())


async def _tells(request):
    return web.json_response(
        [request.method, request.path, (await request.read()).decode()], status=418
    )


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("POST", b'{"a": 1}')])
def test_any_method_path_and_status(method, body):
    reply = _exchange(_tells, method, body)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.error, reply.whole) == (418, None, True)
    assert json.loads(reply.content) == [method, "/any/path", (body or b"").decode()]


async def _streams(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(200):
        await response.write(b"data: {oops %d\n\n" % number)
    return response


def test_an_event_stream_comes_as_it_is():
    reply = _exchange(_streams)
    assert isinstance(reply, Reply)
    assert reply.stream is None
    assert (reply.content.count(b"data: "), reply.error) == (200, None)


def test_more_than_is_wanted_is_not_read():
    reply = _exchange(_streams, most_bytes=20)
    assert isinstance(reply, Reply)
    assert isinstance(reply.error, TooLarge)


async def _waits(request):
    await asyncio.sleep(30)
    return web.Response()


async def _waits_within(request):
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"half")
    await asyncio.sleep(30)
    return response


async def _hangs_up(request):
    request.transport.abort()
    return web.Response()


async def _hangs_up_within(request):
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"half")
    await asyncio.sleep(0.05)
    return await _hangs_up(request)


def test_no_answer_in_time_is_a_failure_and_half_of_one_a_reply():
    none = _exchange(_waits, timeout_s=0.2)
    assert isinstance(none, Failure)
    assert (none.kind, none.message) == (FailureKind.TIMEOUT, "no answer within 0.2 s")
    half = _exchange(_waits_within, timeout_s=0.3)
    assert isinstance(half, Reply)
    assert (half.status, half.content, str(half.error)) == (
        200,
        b"half",
        "no complete answer within 0.3 s",
    )


def test_a_lost_connection_is_a_failure_and_half_an_answer_a_reply():
    none = _exchange(_hangs_up)
    assert isinstance(none, Failure)
    assert none.kind is FailureKind.DISCONNECTED
    half = _exchange(_hangs_up_within)
    assert isinstance(half, Reply)
    assert (half.content, type(half.error)) == (b"half", Disconnected)


VLLM_FORM = (
    "HTTP 400: 6 validation errors:\n  {'type': 'literal_error', 'loc':"
    " 'body.response_format.type', 'msg': \"Input should be 'text', 'json_object' or"
    " 'json_schema'\", 'input': 'json', 'ctx': {'expected': \"'text'\"}}\n "
    " {'type': 'literal_error', 'loc': 'body.response_format.type',"
    " 'msg': \"Input should be 'structural_tag'\", 'input': 'json'}\n  {'type': 'missing', 'loc':"
    " 'body.response_format.format', 'msg': 'Field required', 'input': '<dict of 2 items>'}"
)
"""vLLM 0.32, for the form of trtllm-serve, shortened."""
UNION = (
    "HTTP 400: [{'type': 'missing', 'loc': ('body', 'CompletionRequest', 'prompt'), 'msg': 'Field"
    " required', 'input': {'temperature': 0.0, 'foo': 1}}, {'type': 'extra_forbidden', 'loc':"
    " ('body', 'CompletionRequest', 'messages'), 'msg': 'Extra inputs are not permitted', 'input':"
    " []}, {'type': 'extra_forbidden', 'loc': ('body', 'ChatCompletionRequest', 'foo'), 'msg':"
    " 'Extra inputs are not permitted', 'input': 1}]"
)
"""An orchestrator of trtllm-serve 1.2, which tries both kinds of requests and repeats the body."""
OLD = (
    "1 validation error for CompletionRequest\nguided_json\n  Extra inputs are not permitted"
    " [type=extra_forbidden, input_value={}, input_type=dict]"
)
CUT = (
    "vLLM: truncate_prompt_tokens=1024 cannot be greater than max_model_len = 512. Please request a"
    " smaller truncation size. (parameter=truncate_prompt_tokens, value=1024)"
)
SEED = (
    "[{'type': 'int_parsing', 'loc': ('body', 'seed'), 'msg': 'Input should be a valid integer'}]"
)
FIELD, VALUE = False, True


@pytest.mark.parametrize(
    ("message", "names", "found"),
    [
        (VLLM_FORM, ["type", "response_format"], ("response_format", VALUE)),
        (UNION, ["temperature", "foo"], ("foo", FIELD)),
        (UNION, ["temperature", "prompt"], None),
        (OLD, ["guided_json"], ("guided_json", FIELD)),
        ("[{'type': 'extra_forbidden', 'loc': ('body', 'x')}]", ["x"], ("x", FIELD)),
        (SEED, ["seed"], ("seed", VALUE)),
        (CUT, ["truncate_prompt_tokens"], ("truncate_prompt_tokens", VALUE)),
        ("top_k must be 0 (disable), or at least 1, got -5.", ["top_k"], ("top_k", VALUE)),
        ("stop cannot contain an empty string.", ["'stop'"], ("stop", VALUE)),
        ("HTTP 400: stop cannot contain an empty string.", ["'stop'"], ("stop", VALUE)),
        ("Unsupported parameter: 'stop' is not supported", ["'stop'"], ("stop", FIELD)),
        ("the engine had to stop", ["'stop'"], None),
        (
            "Unknown field: temperature. It must be removed.",
            ["temperature"],
            ("temperature", FIELD),
        ),
        ("temperature is not supported", ["temperature"], ("temperature", FIELD)),
        (
            "Unsupported value: 'temperature' does not support 0 with this model.",
            ["temperature"],
            ("temperature", VALUE),
        ),
        ("`max_tokens` (0) must be greater than 0", ["max_tokens"], ("max_tokens", VALUE)),
        ("pre_temperature_x must be 1", ["temperature"], None),
    ],
)
def test_what_is_refused_is_a_field_or_its_value(message, names, found):
    assert find_refused(message, names) == found


def test_the_errors_of_a_validation_are_shown_once_each_by_their_place():
    assert shorten(VLLM_FORM) == (
        "HTTP 400: response_format.type: Input should be 'text', 'json_object' or 'json_schema';"
        " response_format.type: Input should be 'structural_tag'"
    )
    assert shorten(f"{SEED[:-1]}, {{'type': 'int_type', 'loc': ('body', 'n'), 'msg': 'Inp") == (
        "seed: Input should be a valid integer"
    )
    assert shorten("[{'type': 'missing', 'loc': ('body', 'n'), 'msg': 'Field required'}]") == (
        "n: Field required"
    )
    assert shorten(OLD) == "guided_json: Extra inputs are not permitted"
    assert shorten(CUT) == CUT


RECORDED = Path(__file__).resolve().parents[3] / "shared/recorded_trtllm/answers.jsonl"
FASTAPI = (
    "1 validation error:\n  {'type': 'extra_forbidden', 'loc': ('body', 'modalities'), 'msg':"
    " 'Extra inputs are not permitted', 'input': ['text']}\n\n  File"
    ' "tensorrt_llm/serve/openai_server.py", line 232, in wrapper\n    POST /v1/chat/completions'
)


@pytest.mark.parametrize("body", [{"error": FASTAPI}, {"message": FASTAPI}, {"detail": FASTAPI}])
def test_the_place_that_fastapi_adds_is_left_out(body):
    told = refusal.describe(json.dumps(body).encode())
    assert told.endswith("'msg': 'Extra inputs are not permitted', 'input': ['text']}")
    found = find_refused(told, ["modalities"])
    assert (found.name, found.by_value) == ("modalities", False)


def test_a_traceback_keeps_its_words():
    text = (
        'Traceback (most recent call last):\n  File "/srv/app.py", line 7, in answer\n    raise\n'
        "ValueError: no such model"
    )
    told = refusal.describe(text.encode())
    assert ".py" not in told
    assert told.endswith("ValueError: no such model")


def test_a_message_of_nothing_else_stays():
    assert refusal.describe(b'File "/srv/app.py", line 7') == 'File "/srv/app.py", line 7'


def test_a_file_that_a_request_names_stays():
    told = refusal.describe(b'{"error": "the prompt asks for File app.py, line 7"}')
    assert told == "the prompt asks for File app.py, line 7"


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded answers are not here")
def test_no_recorded_refusal_shows_a_place():
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    refusals = [one for one in lines if one["status"] >= 400 and "File " in one["body"]]
    assert len(refusals) > 30
    for one in refusals:
        told = refusal.describe(one["body"].encode())
        assert ".py" not in told, one["case"]
        assert len(told) > 20
