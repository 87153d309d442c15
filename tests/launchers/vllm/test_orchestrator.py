"""Test the orchestrator of vLLM servers, and the two requests of its hand-over."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product

import httpx
import pytest
from aiohttp import web

from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._vllm.orchestrator import (
    FIRST,
    VllmServer,
    build_first,
    build_second,
    create_app,
    find_obstacle,
    read_params,
)
from tests.scripted_server import (
    ScriptedServer,
    answer,
    fail,
    hang_up,
    json_reply,
    raw,
)

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def test_the_context_server_is_asked_for_one_token_and_cannot_end_earlier():
    asked = {
        "prompt": "Hi",
        "max_tokens": 64,
        "min_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": ["\n"],
        "stop_token_ids": [2],
        "logprobs": 5,
        "temperature": 0.7,
        "seed": 3,
    }
    assert build_first(asked, with_params=True) == {
        "prompt": "Hi",
        "max_tokens": 1,
        "ignore_eos": True,
        "temperature": 0.7,
        "seed": 3,
        "kv_transfer_params": dict(FIRST),
    }
    assert asked["max_tokens"] == 64


def test_a_connector_that_finds_the_cache_itself_gets_no_params():
    assert "kv_transfer_params" not in build_first({"prompt": "Hi"}, with_params=False)


def test_the_prompt_of_a_chat_stays_the_same():
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked = {
        **CHAT,
        "tools": tools,
        "tool_choice": "required",
        "chat_template_kwargs": {"x": 1},
        "max_completion_tokens": 64,
        "response_format": {"type": "json_object"},
    }
    first = build_first(asked, with_params=True)
    assert {"messages", "tools", "chat_template_kwargs", "response_format"} <= first.keys()
    assert (first["max_tokens"], first["max_completion_tokens"]) == (1, 1)
    assert first["tool_choice"] == "none"


@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_a_free_choice_of_tools_stays(choice):
    asked = {**CHAT, "tool_choice": choice}
    assert build_first(asked, with_params=True)["tool_choice"] == choice


def test_the_generation_server_gets_the_whole_request_and_what_was_handed_over():
    asked = {"prompt": "Hi", "stop": ["\n"], "stream": True}
    assert build_second(asked, {"remote_port": 1}) == {
        **asked,
        "kv_transfer_params": {"remote_port": 1},
    }
    assert build_second(asked, None) == asked


@pytest.mark.parametrize(
    ("body", "obstacle"),
    [
        ({"prompt": "Hi"}, None),
        ({"prompt": [1, 2, 3]}, None),
        ({**CHAT, "n": 1}, None),
        ({"prompt": "Hi", "n": None, "echo": False, "prompt_logprobs": None}, None),
        ({"prompt": ["Hi", "you"]}, "several prompts"),
        ({"prompt": [[1, 2], [3]]}, "several prompts"),
        ({**CHAT, "n": 2}, "several answers"),
        ({"prompt": "Hi", "best_of": 2}, "several answers"),
        ({"prompt": "Hi", "use_beam_search": True}, "beam search"),
        ({"prompt": "Hi", "echo": True}, "log-probabilities of the prompt"),
        ({"prompt": "Hi", "prompt_logprobs": 0}, "log-probabilities of the prompt"),
    ],
)
def test_what_cannot_be_handed_over(body, obstacle):
    assert find_obstacle(body) == obstacle


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"kv_transfer_params": None}, {"kv_transfer_params": {}}, {"x": 1}]
)
def test_an_answer_that_hands_nothing_over(answer):
    assert read_params(answer) is None


TOLD = {"do_remote_prefill": True, "remote_block_ids": [[7]], "remote_port": 5}
HANDED_ALWAYS = [answer("x", finish="length", body={"kv_transfer_params": TOLD})]
LENT = {"prompt": "Hi", "max_tokens": 8}


@dataclass
class Door:
    """An orchestrator and the servers behind it."""

    client: httpx.AsyncClient
    context: list[ScriptedServer]
    generation: list[ScriptedServer]

    async def ask(self, body, path="/v1/completions"):
        return await self.client.post(path, json=body)


@asynccontextmanager
async def opened(context, generation, *, by_params=True, routes=None):
    async with AsyncExitStack() as stack:
        sides = []
        named = []
        for role, scripts in (("context", context), ("generation", generation)):
            sides.append([ScriptedServer(one, routes=routes) for one in scripts])
            urls = [await stack.enter_async_context(one.serve()) for one in sides[-1]]
            named.append(
                [VllmServer(f"{role}_{i}", url.removesuffix("/v1")) for i, url in enumerate(urls)]
            )
        app = create_app(*named, by_params=by_params)
        url = (await stack.enter_async_context(serve_app(app))).removesuffix("/v1")
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=20)
        )
        yield Door(client, *sides)


def tried(story, *args, **more):
    async def run():
        async with opened(*args, **more) as door:
            await story(door)

    asyncio.run(run())


def _named(reply):
    return reply.headers.get("X-Context-Server"), reply.headers.get("X-Generation-Server")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_answer_is_that_of_the_generation_server_and_names_both(path):
    async def story(door):
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
        asked = LENT if path == "/v1/completions" else body
        reply = await door.ask(asked, path)
        choice = reply.json()["choices"][0]
        assert (choice.get("text") or choice["message"]["content"]) == "four"
        assert _named(reply) == ("context_0", "generation_0")
        [first], [second] = door.context[0].bodies, door.generation[0].bodies
        assert first["max_tokens"] == 1
        assert second == {**asked, "kv_transfer_params": TOLD}

    tried(story, [HANDED_ALWAYS], [[answer("four")]])


def test_a_stream_comes_as_it_is_written():
    ready = asyncio.Event()

    async def story(door):
        async with door.client.stream("POST", "/v1/completions", json=LENT) as reply:
            assert _named(reply) == ("context_0", "generation_0")
            assert reply.headers["Content-Type"].startswith("text/event-stream")
            pieces = reply.aiter_bytes()
            assert b"one" in await anext(pieces)
            ready.set()
            assert b"[DONE]" in b"".join([piece async for piece in pieces])

    async def begin_then_wait(request):
        response = await _begin(request)
        await ready.wait()
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    tried(story, [HANDED_ALWAYS], [begin_then_wait])


async def _begin(request):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request.http)
    await response.write(b'data: {"choices": [{"text": "one"}]}\n\n')
    return response


@pytest.mark.parametrize(("contexts", "generations"), [(2, 3), (2, 2), (1, 2), (4, 2)])
def test_servers_take_turns_in_every_pair(contexts, generations):
    pairs = contexts * generations

    async def story(door):
        named = [_named(await door.ask(LENT)) for _ in range(2 * pairs)]
        every = [
            (f"context_{i}", f"generation_{j}")
            for i, j in product(range(contexts), range(generations))
        ]
        assert Counter(named) == dict.fromkeys(every, 2)
        for role, count in enumerate((contexts, generations)):
            first = [one[role] for one in named[:count]]
            assert len(set(first)) == count

    tried(story, [HANDED_ALWAYS] * contexts, [[answer("x")]] * generations)


def test_what_cannot_be_handed_over_is_answered_by_a_generation_server_alone():
    async def story(door):
        asked = {**LENT, "echo": True, "logprobs": 1}
        reply = await door.ask(asked)
        assert _named(reply) == (None, "generation_0")
        assert door.generation[0].bodies == [asked]
        assert door.context[0].asked == []

    tried(story, [HANDED_ALWAYS], [[answer("x")]])


def test_a_body_that_is_no_object_gets_the_error_of_a_server():
    async def story(door):
        reply = await door.client.post("/v1/completions", content=b"[1")
        assert (reply.status_code, reply.text) == (400, "broken")

    tried(story, [HANDED_ALWAYS], [[raw(b"broken", status=400)]])


def test_a_refusal_of_the_context_server_is_the_answer():
    async def story(door):
        reply = await door.ask(LENT)
        assert reply.status_code == 400
        assert "too long" in reply.text
        assert _named(reply) == ("context_0", None)
        assert door.generation[0].asked == []

    tried(story, [[fail(400, "too long")]], [[answer("x")]])


def test_a_context_server_that_hands_nothing_over_fails_the_request():
    async def story(door):
        reply = await door.ask(LENT)
        assert reply.status_code == 502
        assert "context_0: no kv_transfer_params in its answer" in reply.text
        assert _named(reply) == ("context_0", None)
        assert door.generation[0].asked == []

    tried(story, [[answer("x", finish="length")]], [[answer("x")]])


def test_a_folder_needs_no_params():
    async def story(door):
        reply = await door.ask(LENT)
        assert _named(reply) == ("context_0", "generation_0")
        assert door.generation[0].bodies == [LENT]
        assert "kv_transfer_params" not in door.context[0].bodies[0]

    tried(story, [[answer("x", finish="length")]], [[answer("x")]], by_params=False)


def test_a_failure_of_the_generation_server_names_both():
    async def story(door):
        reply = await door.ask(LENT)
        assert (reply.status_code, _named(reply)) == (500, ("context_0", "generation_0"))
        assert len(door.generation[0].asked) == 1

    tried(story, [HANDED_ALWAYS], [[fail(500, "no blocks")]])


@pytest.mark.parametrize("side", ["context", "generation"])
def test_a_server_that_hangs_up_is_named_and_not_asked_again(side):
    async def story(door):
        reply = await door.ask(LENT)
        assert reply.status_code == 502
        assert f"{side}_0: ServerDisconnectedError" in reply.text
        assert _named(reply)[side == "generation"] == f"{side}_0"
        assert len(getattr(door, side)[0].asked) == 1

    ill = {side: [[hang_up()]]}
    tried(story, ill.get("context", [HANDED_ALWAYS]), ill.get("generation", [[answer("x")]]))


def test_an_answer_that_breaks_off_does_not_end_as_a_whole_one():
    seen = asyncio.Event()

    async def story(door):
        async with door.client.stream("POST", "/v1/completions", json=LENT) as reply:
            pieces = reply.aiter_bytes()
            assert b"one" in await anext(pieces)
            seen.set()
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(pieces)

    async def break_off(request):
        response = await _begin(request)
        await seen.wait()
        request.reset()
        return response

    tried(story, [HANDED_ALWAYS], [break_off])


def test_a_client_that_leaves_ends_the_request_to_the_server():
    arrived, ended = asyncio.Event(), asyncio.Event()

    async def story(door):
        asking = asyncio.create_task(door.ask(LENT))
        async with asyncio.timeout(20):
            await arrived.wait()
            asking.cancel()
            await ended.wait()

    async def wait(request):
        arrived.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    tried(story, [HANDED_ALWAYS], [wait])


def test_it_is_healthy_if_every_server_is():
    def healthy(request):
        return raw(b"")

    async def story(door):
        assert (await door.client.get("/health")).status_code == 200

    async def ill(door):
        reply = await door.client.get("/health")
        assert reply.status_code == 503
        assert "not healthy: context_0, generation_0" in reply.text

    well = {"/health": healthy}
    tried(story, [HANDED_ALWAYS], [[answer("x")]] * 2, routes=well)
    tried(ill, [HANDED_ALWAYS], [[answer("x")]])


def test_the_first_context_server_answers_questions_about_the_model():
    async def story(door):
        assert (await door.client.get("/v1/models")).json() == {"data": []}
        assert (await door.client.post("/tokenize", json={"prompt": "a"})).json() == {"count": 1}
        assert (await door.client.get("/metrics")).status_code == 404

    routes = {
        "/v1/models": lambda request: json_reply({"data": []}),
        "/tokenize": lambda request: json_reply({"count": len(request.body)}),
    }
    tried(story, [HANDED_ALWAYS], [[answer("x")]], routes=routes)


def test_the_key_and_the_id_of_a_request_reach_both_servers():
    async def story(door):
        sent = {"Authorization": "Bearer k", "X-Request-ID": "r1", "X-Other": "o"}
        await door.client.post("/v1/completions", json=LENT, headers=sent)
        for server in (door.context[0], door.generation[0]):
            got = server.asked[0].headers
            assert (got["Authorization"], got["X-Request-ID"]) == ("Bearer k", "r1")
            assert "X-Other" not in got

    tried(story, [HANDED_ALWAYS], [[answer("x")]])
