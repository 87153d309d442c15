"""Test /v1/responses of our servers: by both routes, our client reads the same answers."""

import asyncio

import pytest

from serve_eval.client.client import Client
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._simulated.simulator import SimulatorConfig, serve
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import Endpoint, Limits, Message, Request, SamplingParams
from tests.launchers.test_simulator import QUESTION, TURNS, write_answers

TOOL = {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": TOOL}]


def by_both(serve_it, model, prompt, *, stream, max_tokens=24, **extra):
    """Return the answers of one server by chat and by responses."""
    sampling = SamplingParams(max_tokens=max_tokens)
    request = Request(sample_id="1", prompt=prompt, sampling=sampling, extra=extra)

    async def main():
        found = []
        async with serve_it() as url:
            for route in ("chat", "responses"):
                limits, at = (
                    Limits(stream=stream, max_attempts=1),
                    Endpoint(base_url=url, model=model),
                )
                async with Client(at, limits, route=route) as client:
                    found.append(await client.send(request))
        return found

    return asyncio.run(main())


@pytest.fixture
def simulated(tmp_path):
    answers = write_answers(tmp_path / "answers.jsonl", {QUESTION: 1.0, TURNS: 1.0})
    return lambda: serve(SimulatorConfig(answers=answers))


def same(chat, items):
    names = ("text", "finish_reason", "usage", "tool_calls", "reasoning")
    return [name for name in names if getattr(chat, name) != getattr(items, name)] == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [3, 24])
def test_the_simulated_endpoint_answers_alike(simulated, stream, max_tokens):
    chat, items = by_both(simulated, "simulated", TURNS, stream=stream, max_tokens=max_tokens)
    assert same(chat, items)
    assert items.finish_reason == ("length" if max_tokens == 3 else "stop")
    assert (items.ttft_s is not None) is stream


@pytest.mark.parametrize("stream", [False, True])
def test_its_calls_are_the_same(simulated, stream):
    unknown = (Message(role="user", content="What is the weather?"),)
    chat, items = by_both(
        simulated, "simulated", unknown, stream=stream, max_tokens=100, tools=TOOLS
    )
    assert same(chat, items)
    assert [call.name for call in items.tool_calls] == ["get_weather"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_embedded_model_answers_alike(stream):
    prompt = (Message(role="user", content="What is 2 + 3?"),)

    def served():
        return serve_app(create_app(WEIGHTS, {"m": "none"}))

    chat, items = by_both(served, "m", prompt, stream=stream, max_tokens=8)
    assert same(chat, items)
    assert items.text
