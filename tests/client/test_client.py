"""Test the client on a real socket: every kind of failure, and retries only where they can help."""

import asyncio
import json
import socket
import uuid
from dataclasses import replace

import msgspec
import pytest
from aiohttp import web

from serve_eval.client.client import Client
from serve_eval.client.preflight import check, discover_model
from serve_eval.client.tls import Certificates
from serve_eval.errors import EndpointError, PlanError
from serve_eval.launchers._simulated.simulator import (
    STATS,
    SimulatorConfig,
    create_app,
    serve,
)
from serve_eval.schema import (
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    Message,
    Request,
    Response,
    SamplingParams,
    ToolCall,
)
from serve_eval.schema.media import prompt_sha256

QUICK = Limits(stall_timeout_s=20.0, connect_timeout_s=10.0, sample_timeout_s=40.0)
KEY = "sk-test-0123456789abcdef"


def _request(prompt="What is 3 + 4?", **sampling):
    return Request(sample_id="1", prompt=prompt, sampling=SamplingParams(max_tokens=20, **sampling))


@pytest.fixture
def answers(tmp_path):
    """Write an answer file for one text and one chat prompt."""
    chat = (Message(role="user", content="What is 3 + 4?"),)
    lines = [
        {
            "sha256": prompt_sha256(prompt),
            "right": " #### 7",
            "wrong": " #### 8",
            "probability": 1.0,
        }
        for prompt in ("What is 3 + 4?", chat)
    ]
    (tmp_path / "answers.jsonl").write_bytes(
        b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    )
    return tmp_path / "answers.jsonl"


def _simulate(
    config,
    body,
    limits=QUICK,
    **client,
):
    async def main():
        app = create_app(config)
        async with (
            serve(app) as base_url,
            Client(Endpoint(base_url=base_url, model="simulated"), limits, **client) as c,
        ):
            return await body(c), app[STATS]

    return asyncio.run(main())


def _answering(handler):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    return app


def _ask(
    handler,
    limits=QUICK,
    request=None,
    **client,
):
    async def main():
        async with (
            serve(_answering(handler)) as base_url,
            Client(Endpoint(base_url=base_url), limits, **client) as c,
        ):
            return await c.send(request or _request())

    return asyncio.run(main())


@pytest.mark.parametrize(
    "prompt", ["What is 3 + 4?", (Message(role="user", content="What is 3 + 4?"),)]
)
def test_text_and_messages_are_answered(answers, prompt):
    result, stats = _simulate(
        SimulatorConfig(answers=answers, record=True), lambda c: c.send(_request(prompt))
    )
    assert isinstance(result, Response)
    assert (result.text.strip(), result.finish_reason) == ("#### 7", "stop")
    assert result.usage.completion_tokens == 2
    (attempt,) = result.attempts
    assert (attempt.failure, attempt.status) == (None, 200)
    assert result.latency_s == pytest.approx(attempt.end_s - attempt.start_s, abs=1e-4)
    assert stats.headers[0]["X-Request-ID"] == attempt.request_id
    assert stats.bodies[0]["temperature"] == 0.0


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_keeps_what_the_server_calls_it(stream):
    piece = {
        "id": "cmpl-of-the-server",
        "choices": [{"index": 0, "text": "7", "finish_reason": "stop"}],
    }
    used = {
        "prompt_tokens": 9,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 8},
    }
    lines = [
        json.dumps(one)
        for one in (
            {**piece, "usage": None},
            {"id": "x", "choices": [], "usage": used, "system_fingerprint": 300 * "f"},
        )
    ]

    async def handler(request):
        if not stream:
            return web.json_response({**piece, "usage": used, "system_fingerprint": 300 * "f"})
        text = "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]"))
        return web.Response(text=text, content_type="text/event-stream")

    result = _ask(handler, replace(QUICK, stream=stream))
    assert isinstance(result, Response)
    assert (result.answer_id, result.usage.cached_tokens) == ("cmpl-of-the-server", 8)
    assert result.system_fingerprint == 100 * "f"


@pytest.mark.parametrize(
    ("kind", "failure", "status", "attempts"),
    [
        ("500", FailureKind.HTTP_ERROR, 500, 4),
        ("503", FailureKind.HTTP_ERROR, 503, 4),
        ("429", FailureKind.HTTP_ERROR, 429, 4),
        ("wrapped_400", FailureKind.HTTP_ERROR, 500, 1),
        ("disconnect", FailureKind.DISCONNECTED, None, 4),
        ("hang", FailureKind.TIMEOUT, None, 4),
        ("html", FailureKind.INVALID_RESPONSE, 200, 4),
        ("empty_choices", FailureKind.INVALID_RESPONSE, 200, 4),
        ("null_content", FailureKind.INVALID_RESPONSE, 200, 4),
        ("bad_json", FailureKind.INVALID_RESPONSE, 200, 4),
        ("stream_without_finish", FailureKind.INVALID_RESPONSE, 200, 4),
    ],
)
def test_every_fault_has_its_kind_and_its_attempts(
    answers,
    monkeypatch,
    kind,
    failure,
    status,
    attempts,
):
    monkeypatch.setattr("serve_eval.client.attempts.outcome.BASE_S", 0.01)
    config = SimulatorConfig(answers=answers, failure_rate=1.0, failure_kind=kind)
    limits = Limits(stall_timeout_s=0.3) if kind == "hang" else QUICK
    result, stats = _simulate(config, lambda c: c.send(_request()), limits)
    assert isinstance(result, Failure)
    assert (result.kind, result.status, len(result.attempts)) == (failure, status, attempts)
    assert {attempt.failure for attempt in result.attempts} == {failure}
    assert len({attempt.request_id for attempt in result.attempts}) == attempts
    assert stats.requests.total() == attempts


def test_a_fault_that_passes_is_survived_and_every_attempt_is_on_record(answers):
    config = SimulatorConfig(
        answers=answers, failure_rate=1.0, failure_kind="429", failures_per_prompt=2
    )
    result, _ = _simulate(config, lambda c: c.send(_request()))
    assert isinstance(result, Response)
    assert [attempt.status for attempt in result.attempts] == [429, 429, 200]


def test_ids_of_requests_are_uuids_since_a_server_refuses_others(answers):
    config = SimulatorConfig(
        answers=answers, failure_rate=1.0, failure_kind="429", failures_per_prompt=2
    )
    result, _ = _simulate(config, lambda c: c.send(_request()))
    ids = [attempt.request_id for attempt in result.attempts]
    assert [str(uuid.UUID(name, version=4)) for name in ids] == ids
    assert len(set(ids)) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_never_repeated(status):
    asked = []

    async def refuse(request):
        asked.append(request.path)
        return web.json_response({"error": "no"}, status=status)

    result = _ask(refuse)
    assert isinstance(result, Failure)
    assert (result.message, result.retryable, asked) == (
        f"HTTP {status}: no",
        False,
        ["/v1/completions"],
    )


def test_a_context_overflow_is_a_failure_of_the_sample_with_the_servers_words(
    answers,
):
    result, _ = _simulate(
        SimulatorConfig(answers=answers, context_tokens=10), lambda c: c.send(_request())
    )
    assert isinstance(result, Failure)
    assert (result.kind, result.status, result.retryable) == (FailureKind.HTTP_ERROR, 400, False)
    assert "maximum context length" in result.message


def test_a_redirect_is_not_followed_with_the_key():
    async def redirect(request):
        return web.Response(status=307, headers={"Location": "http://127.0.0.1:9/"})

    result = _ask(redirect, api_key=KEY)
    assert isinstance(result, Failure)
    assert (result.status, result.retryable) == (307, False)


async def test_a_port_where_nobody_listens_is_a_disconnect():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    limits = Limits(max_attempts=1)
    async with Client(Endpoint(base_url=f"http://127.0.0.1:{port}/v1"), limits) as client:
        result = await client.send(_request())
    assert isinstance(result, Failure)
    assert (result.kind, result.retryable) == (FailureKind.DISCONNECTED, True)
    assert str(port) in result.message


def test_an_answer_that_never_ends_is_cut_off_at_the_limit():
    async def endless(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1000):
            await response.write(b"x" * 65536)
        return response

    result = _ask(endless, Limits(max_response_bytes=1_000_000, max_attempts=1))
    assert isinstance(result, Failure)
    assert result.kind is FailureKind.INVALID_RESPONSE
    assert "larger than 1000000 bytes" in result.message


def test_a_body_that_breaks_off_is_a_disconnect():
    async def half(request):
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"choices": [')
        request.transport.close()
        return response

    result = _ask(half, Limits(max_attempts=1))
    assert isinstance(result, Failure)
    assert result.kind is FailureKind.DISCONNECTED


def test_the_time_limit_of_a_sample_covers_its_attempts_and_pauses():
    async def busy(request):
        return web.Response(status=429, headers={"Retry-After": "60"})

    result = _ask(busy, Limits(sample_timeout_s=1.0))
    assert isinstance(result, Failure)
    assert (result.kind, len(result.attempts)) == (FailureKind.HTTP_ERROR, 1)
    assert "gave up after the sample's 1 s" in result.message


def test_a_sample_that_is_never_answered_says_so_once():
    async def never(request):
        await asyncio.sleep(60)
        return web.Response()

    result = _ask(never, Limits(sample_timeout_s=0.5))
    assert isinstance(result, Failure)
    assert (result.kind, result.message) == (
        FailureKind.TIMEOUT,
        "no answer within the sample's 0.5 s",
    )
    assert [attempt.failure for attempt in result.attempts] == [FailureKind.TIMEOUT]


def test_a_key_that_a_server_echoes_is_masked_and_it_is_sent():
    async def echo(request):
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        assert request.headers["X-Other"] == "other-secret"
        text = f"{request.headers['Authorization']} {request.headers['X-Other']}"
        return web.json_response({"choices": [{"text": text, "finish_reason": "stop"}]})

    result = _ask(echo, api_key=KEY, headers={"X-Other": "other-secret"}, masked=["other-secret"])
    assert isinstance(result, Response)
    assert result.text == "Bearer *** ***"


def test_a_key_that_a_stream_echoes_in_pieces_is_masked():
    async def echo(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece, finish in ((KEY[:9], None), (KEY[9:], "stop")):
            delta = {"content": piece, "reasoning_content": piece}
            chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
            await response.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
        return response

    result = _ask(echo, Limits(stream=True), api_key=KEY)
    assert isinstance(result, Response)
    assert (result.text, result.reasoning) == ("***", "***")


def test_every_text_of_a_stream_is_masked():
    """The secret comes in pieces of three characters, so no single piece contains it."""
    parts = {"content": KEY, "reasoning_content": KEY, "refusal": KEY}

    async def echo(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        deltas = [
            {name: text[start : start + 3]}
            for name, text in parts.items()
            for start in range(0, len(text), 3)
        ]
        for name, text in (("s", KEY[:9]), ("", KEY[9:])):
            deltas.append(
                {"tool_calls": [{"index": 0, "function": {"name": name, "arguments": text}}]}
            )
        last = {"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": KEY}
        for choice in (*({"index": 0, "delta": delta} for delta in deltas), last):
            await response.write(
                b"data: " + msgspec.json.encode({"id": f"id {KEY}", "choices": [choice]}) + b"\n\n"
            )
        return response

    result = _ask(echo, Limits(stream=True), api_key=KEY)
    assert isinstance(result, Response)
    assert (result.text, result.reasoning, result.refusal) == ("***", "***", "***")
    assert (result.stop_reason, result.answer_id) == ("***", "id ***")
    assert result.tool_calls == (ToolCall("s", "***"),)


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_answer_is_told_without_a_key_wherever_it_is_cut(stream):
    async def echo(request):
        body = f"{'=' * cut}{KEY}" if not stream else f"data: {'=' * cut}{KEY}\n\n"
        return web.Response(text=body, content_type="text/event-stream" if stream else "text/plain")

    for cut in range(570, 600, 4):  # noqa: B007  (the server reads it)
        result = _ask(echo, Limits(stream=stream, max_attempts=1), api_key=KEY)
        assert isinstance(result, Failure)
        assert "====" in result.message
        assert KEY[:2] not in result.message.replace("stream", "")


def test_tokens_that_spell_a_key_are_masked():
    async def echo(request):
        tokens = ["a ", *(KEY[start : start + 3] for start in range(0, len(KEY), 3)), " b"]
        logprobs = {"tokens": tokens, "token_logprobs": [-1.0] * len(tokens)}
        choice = {"text": "", "finish_reason": "length", "logprobs": logprobs}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 0}
        return web.json_response({"choices": [choice], "usage": usage})

    result = _ask(
        echo, api_key=KEY, request=msgspec.structs.replace(_request(), prompt_logprobs=True)
    )
    assert isinstance(result, Response)
    assert result.prompt_logprobs.tokens is not None
    assert "".join(result.prompt_logprobs.tokens) == "a *** b"


def test_a_short_key_is_masked_in_a_refusal_and_stays_a_word_of_an_answer():
    async def refuse(request):
        return web.json_response({"error": {"message": "no such key: EMPTY"}}, status=400)

    async def answer(request):
        return web.json_response({"choices": [{"text": "EMPTY", "finish_reason": "stop"}]})

    refused, answered = _ask(refuse, api_key="EMPTY"), _ask(answer, api_key="EMPTY")
    assert isinstance(refused, Failure)
    assert refused.message == "HTTP 400: no such key: ***"
    assert isinstance(answered, Response)
    assert answered.text == "EMPTY"


def test_of_two_secrets_the_longer_is_masked_whole():
    async def echo(request):
        return web.json_response(
            {"choices": [{"text": f"{KEY}EFGHIJ {KEY}", "finish_reason": "stop"}]}
        )

    result = _ask(echo, api_key=KEY, masked=[f"{KEY}EFGHIJ"])
    assert isinstance(result, Response)
    assert result.text == "*** ***"


def test_the_environment_gives_no_proxy(answers, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    result, _ = _simulate(SimulatorConfig(answers=answers), lambda c: c.send(_request()))
    assert isinstance(result, Response)


async def test_a_configured_proxy_is_used():
    seen = []

    async def proxy(request):
        seen.append(str(request.url))
        return web.json_response({"choices": [{"text": "via proxy", "finish_reason": "stop"}]})

    async with serve(_answering(proxy)) as url:
        endpoint = Endpoint(base_url="http://model.invalid/v1")
        async with Client(endpoint, QUICK, proxy=url.removesuffix("/v1")) as client:
            result = await client.send(_request())
    assert isinstance(result, Response)
    assert seen == ["http://model.invalid/v1/completions"]


def test_a_ca_bundle_that_cannot_be_read_is_a_plan_error(tmp_path):
    (tmp_path / "bad.pem").write_text("not a certificate")
    for name in ("bad.pem", "missing.pem"):
        with pytest.raises(PlanError, match=name):
            Client(
                Endpoint(base_url="http://h/v1"),
                QUICK,
                certificates=Certificates(str(tmp_path / name)),
            )


def test_as_many_requests_are_in_flight_as_are_sent(answers):
    async def many(client):
        return await asyncio.gather(*(client.send(_request()) for _ in range(200)))

    results, stats = _simulate(SimulatorConfig(answers=answers, latency_s=1.0), many, Limits())
    assert all(isinstance(result, Response) for result in results)
    assert stats.max_concurrent == 200


def test_the_most_requests_in_flight_at_once_are_counted(answers):
    async def some(client):
        counted = []
        for count in (1, 3, 2, 5):
            await asyncio.gather(*(client.send(_request()) for _ in range(count)))
            counted.append(client.max_in_flight)
        return counted

    assert _simulate(SimulatorConfig(answers=answers), some)[0] == [1, 3, 3, 5]


def test_the_one_model_is_discovered(answers):
    assert (
        _simulate(SimulatorConfig(answers=answers, model="my/model"), discover_model)[0]
        == "my/model"
    )


def test_an_orchestrator_without_a_model_list_asks_for_the_name(answers):
    with pytest.raises(EndpointError, match="does not list the models: HTTP 404") as caught:
        _simulate(SimulatorConfig(answers=answers, no_models=True), discover_model)
    assert "--model" in caught.value.hint


def _preflight(config, model="simulated", **client):
    async def main():
        async with (
            serve(create_app(config)) as url,
            Client(Endpoint(base_url=url, model=model), QUICK, **client) as c,
        ):
            await check(
                c,
                chat=False,
                sampling=SamplingParams(max_tokens=2),
                extra={"truncate_prompt_tokens": 4096},
            )

    with pytest.raises(EndpointError) as caught:
        asyncio.run(main())
    return caught.value


def test_a_model_that_the_server_does_not_know_comes_with_the_nearest(answers):
    error = _preflight(
        SimulatorConfig(answers=answers, model="meta-llama/Llama-3.1-8B"),
        model="meta-llama/Llama-3.1-8b",
    )
    assert "HTTP 404" in str(error)
    assert "Did you mean 'meta-llama/Llama-3.1-8B'?" in error.hint


def test_a_missing_key_is_said(answers):
    error = _preflight(SimulatorConfig(answers=answers, api_key=KEY))
    assert "HTTP 401" in str(error)
    assert "OPENAI_API_KEY" in error.hint


@pytest.mark.parametrize(
    ("field", "hint"),
    [
        ("truncate_prompt_tokens", "--set TASK.truncate_prompt_tokens=null"),
        (
            "chat_template_kwargs",
            "remove the option that sends it (thinking, effort, or suite_exact, which switches it"
            " off)",
        ),
        (
            "reasoning_effort",
            "remove the option that sends it (effort, --preset or protocol.extra_body)",
        ),
        ("min_p", "remove the option that sends it (protocol.extra_body)"),
    ],
)
def test_a_server_that_refuses_a_field_comes_with_what_leaves_it_out(field, hint):
    async def refuse(request):
        return web.json_response(
            {"error": f"[{{'type': 'extra_forbidden', 'loc': ('body', '{field}')}}]"}, status=400
        )

    async def main():
        async with (
            serve(_answering(refuse)) as url,
            Client(Endpoint(base_url=url, model="m"), QUICK) as c,
        ):
            await check(c, chat=False, sampling=SamplingParams(max_tokens=2), extra={field: 4096})

    with pytest.raises(EndpointError) as caught:
        asyncio.run(main())
    assert hint in caught.value.hint


async def test_what_an_endpoint_tells_of_itself_is_kept_without_the_key():
    async def tell(request):
        if request.path == "/version":
            return web.json_response({"version": f"1.2 {KEY}"})
        models = [
            {"id": f"model of {KEY}", "owned_by": "llamacpp"},
            {"id": "other", "owned_by": "llamacpp"},
        ]
        return web.json_response({"data": models})

    told = {"models": ["model of ***", "other"], "server": "llama-server", "version": "1.2 ***"}
    async with (
        serve(_answering(tell)) as url,
        Client(Endpoint(base_url=url), QUICK, api_key=KEY) as client,
    ):
        assert await client.describe() == told
