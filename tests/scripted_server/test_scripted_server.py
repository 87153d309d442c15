"""Test the test server: the effect of each reply on our client, and the recorded requests."""

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest

from serve_eval.client.client import Client
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
from tests.scripted_server import (
    EVERY_PATH,
    ScriptedServer,
    TokenLogprob,
    after,
    answer,
    fail,
    hang_up,
    json_reply,
    logprobs,
    models,
    raw,
    reset,
    stall,
    stream,
    tool_call,
    version,
    when,
)

CHAT = (Message(role="user", content="Hi"),)


def _said(reply, *, chat=False, streamed=False, stall_s=20.0):
    async def main():
        limits = Limits(
            max_attempts=1, stream=streamed, stall_timeout_s=stall_s, sample_timeout_s=stall_s
        )
        async with (
            ScriptedServer([reply]).serve() as url,
            Client(Endpoint(base_url=url), limits) as client,
        ):
            return await client.send(
                Request(
                    sample_id="1",
                    prompt=CHAT if chat else "Hi",
                    sampling=SamplingParams(max_tokens=9),
                )
            )

    return asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_an_answer_has_the_form_that_was_asked_for(chat, streamed):
    said = _said(answer("four", finish="length", usage=(3, 1)), chat=chat, streamed=streamed)
    assert isinstance(said, Response), said
    assert (said.text, said.finish_reason) == ("four", "length")
    assert (said.usage.prompt_tokens, said.usage.completion_tokens) == (3, 1)


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (fail(503, "no room"), FailureKind.HTTP_ERROR, "HTTP 503: no room"),
        (fail(500), FailureKind.HTTP_ERROR, "HTTP 500"),
        (json_reply({"error": "no quota"}, 403), FailureKind.HTTP_ERROR, "no quota"),
        (raw(b"<html>", content_type="text/html"), FailureKind.INVALID_RESPONSE, ""),
        (hang_up(), FailureKind.DISCONNECTED, ""),
        (reset(), FailureKind.DISCONNECTED, ""),
    ],
)
def test_what_is_no_answer_is_a_failure(reply, kind, message):
    said = _said(reply)
    assert isinstance(said, Failure)
    assert said.kind is kind
    assert message in said.message


def test_silence_lasts_until_the_client_hangs_up():
    silence = stall()
    for _ in range(2):  # in separate event loops
        said = _said(silence, stall_s=0.1)
        assert isinstance(said, Failure)
        assert said.kind is FailureKind.TIMEOUT


def test_a_stream_sends_events_of_every_kind():
    piece = {"choices": [{"index": 0, "text": "fo", "finish_reason": None}]}
    last = {"choices": [{"index": 0, "text": "ur", "finish_reason": "stop"}]}
    said = _said(
        stream([b": a comment\n\n", piece, json.dumps(last), "[DONE]"], line_end=b"\r\n"),
        streamed=True,
    )
    assert isinstance(said, Response), said
    assert said.text == "four"


def _post(server, *paths):
    """Send a question to each path at the same time."""

    async def main():
        async with server.serve() as url, httpx.AsyncClient(trust_env=False, timeout=20) as client:
            origin = url.removesuffix("/v1")
            body = {"prompt": "p", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
            return await asyncio.gather(*(client.post(origin + path, json=body) for path in paths))

    return asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called(streamed):
    said = _said(tool_call("weather", {"city": "Paris"}), chat=True, streamed=streamed)
    assert isinstance(said, Response), said
    assert said.tool_calls == (ToolCall("weather", '{"city": "Paris"}'),)


def test_log_probabilities_are_as_openai_writes_them():
    chat, text = "/v1/chat/completions", "/v1/completions"
    token = TokenLogprob(text="yes", logprob=-0.5, top={"no": -1.0})
    told = _post(ScriptedServer([logprobs([token])]), chat)[0].json()["choices"][0]["logprobs"]
    assert told["content"][0]["top_logprobs"] == [{"token": "no", "logprob": -1.0}]
    told = _post(ScriptedServer([logprobs([token])]), text)[0].json()["choices"][0]["logprobs"]
    assert told == {"tokens": ["yes"], "token_logprobs": [-0.5], "top_logprobs": [{"no": -1.0}]}


def test_a_list_goes_on_with_its_last_reply_and_a_function_may_wait():
    path = "/v1/completions"
    server = ScriptedServer([fail(429), answer("4")])
    assert sorted(reply.status_code for reply in _post(server, path, path, path)) == [200, 200, 429]
    two = asyncio.Event()

    async def script(request):
        if request.number == 2:
            two.set()
        return when(two, after(0.001, answer(f"{request.in_flight}")))

    server = ScriptedServer(script)
    texts = sorted(reply.json()["choices"][0]["text"] for reply in _post(server, path, path))
    assert (texts, server.max_in_flight, server.in_flight) == (["1", "2"], 2, 0)


def test_fixed_routes_and_the_script_are_recorded_apart():
    server = ScriptedServer(
        [answer("4")], routes={"/v1/models": models("m"), "/version": version("1.2")}
    )
    replies = _post(server, "/v1/models", "/version", "/v1/completions", "/health")
    assert [reply.status_code for reply in replies] == [200, 200, 200, 404]
    assert [replies[0].json()["data"][0]["id"], replies[1].json()] == ["m", {"version": "1.2"}]
    assert {request.path for request in server.requests} == {
        "/v1/models",
        "/version",
        "/v1/completions",
    }
    [asked] = server.asked
    assert (asked.number, asked.prompt, asked.max_tokens, asked.chat) == (1, "p", 3, False)
    assert (asked.method, asked.headers["Content-Type"]) == ("POST", "application/json")
    assert server.bodies == [asked.body]


def test_a_script_can_answer_every_path_and_a_server_may_have_none():
    server = ScriptedServer(lambda request: raw(request.path.encode()), paths=EVERY_PATH)
    assert [reply.content for reply in _post(server, "/a/b", "/")] == [b"/a/b", b"/"]
    assert [reply.status_code for reply in _post(ScriptedServer(), "/v1/completions")] == [404]


def test_the_example_of_the_page_is_a_test_that_passes():
    page = Path(__file__).parents[2] / "docs/architecture.md"
    [example] = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names = {}
    exec(compile(example, page, "exec", dont_inherit=True), names)
    [test] = [value for name, value in names.items() if name.startswith("test_")]
    test()


def test_a_thread_serves_what_has_no_loop_to_share():
    with ScriptedServer(routes={"/v1/models": models("m")}).serve_in_thread() as url:
        assert httpx.get(f"{url}/models", trust_env=False).json()["data"][0]["id"] == "m"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/models", trust_env=False)
