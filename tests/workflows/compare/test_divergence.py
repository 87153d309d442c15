"""The first different token of two answers, and how sure each endpoint was of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from aiohttp import web

from launchers._http.server import serve_app
from serve_eval.client.client import Client
from serve_eval.schema import (
    Dataset,
    Endpoint,
    Hypothesis,
    Limits,
    Message,
    Metric,
    Outcome,
    Request,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.workflows.compare.divergence import Divergence, Token, _tokens, first_divergence, look_at_all, read

YES = Token("yes", -0.70, {"yes": -0.70, "no": -0.75})
NO = Token("no", -0.70, {"no": -0.70, "yes": -0.72})
SURE = Token("no", -0.01, {"no": -0.01, "yes": -4.6})
ALONE = Token("no", -0.01, {"no": -0.01, "maybe": -5.0})
FLAT = Token("no", -0.70, {"no": -0.70, "maybe": -0.71})
START = Token("I say", -0.1, {"I say": -0.1})


@pytest.mark.parametrize(
    ("other", "kind", "gaps"),
    [
        (NO, "near tie", (0.05, 0.02)),
        (SURE, "confident", (0.05, 4.59)),
        (ALONE, "confident", (0.05, 4.99)),
        (FLAT, "unknown", (0.05, 0.01)),
    ],
)
def test_how_sure_they_were(other: Token, kind: str, gaps: tuple[float, float]) -> None:
    found = first_divergence([START, YES, START], [START, other, YES])
    assert (found.kind, found.token, found.tokens) == (kind, 1, ("yes", "no"))
    assert found.gaps == pytest.approx(gaps)


def test_answers_that_do_not_differ_or_of_which_one_goes_on() -> None:
    assert first_divergence([START, YES], [START, YES]).kind == "same again"
    longer = first_divergence([START], [START, YES])
    assert (longer.kind, longer.token) == ("unknown", 1)
    assert "of B" in longer.why


@pytest.mark.parametrize(
    "choice",
    [
        {"logprobs": None},
        {},
        {"logprobs": {"content": []}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": [None]}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": []}},
    ],
)
def test_what_has_no_log_probabilities_is_not_read(choice: Mapping[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read(msgspec.json.encode({"choices": [choice]}))


def _endpoint(tokens: list[Token], asked: list[dict[str, Any]]) -> web.Application:
    """Says these tokens to whatever it is asked, in the form of the route."""

    async def chat(request: web.Request) -> web.Response:
        asked.append(await request.json())
        content = []
        for t in tokens:
            tops = [{"token": name, "logprob": value} for name, value in t.top.items()]
            content.append({"token": t.text, "logprob": t.logprob, "top_logprobs": tops})
        message = {"role": "assistant", "content": "".join(t.text for t in tokens)}
        return web.json_response({"choices": [{"message": message, "logprobs": {"content": content}}]})

    async def text(request: web.Request) -> web.Response:
        asked.append(await request.json())
        told = {
            "tokens": [t.text for t in tokens],
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [dict(t.top) for t in tokens],
        }
        return web.json_response({"choices": [{"text": "".join(t.text for t in tokens), "logprobs": told}]})

    async def refused(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"object": "error", "message": "no logprobs here"}, status=400)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", text if tokens else refused)
    return app


def _task() -> Task:
    return Task(
        name="made",
        version=1,
        reference_file="made",
        metric=Metric(),
        hypothesis=Hypothesis(),
        sampling=SamplingParams(max_tokens=8),
        protocol={},
        load=lambda roots, n: Dataset(samples=[], files=(), total=0),
        score=lambda sample, response: Score(value=0.0, outcome=Outcome.WRONG),
        answers=lambda sample: ("1", "0"),
    )


def _look(a: web.Application, b: web.Application, samples: list[Sample]) -> list[str]:
    async def both() -> list[str]:
        async with (
            serve_app(a) as at_a,
            serve_app(b) as at_b,
            Client(Endpoint(base_url=at_a, model="m"), Limits()) as one,
            Client(Endpoint(base_url=at_b, model="m"), Limits()) as other,
        ):
            found = await look_at_all(_task(), samples, one, other)
        return [f"{one.kind} {one.why}".strip() for one in found]

    return asyncio.run(both())


def test_tokens_that_spell_a_key_together_are_masked() -> None:
    key = "sk-live-Q7pRz2VwX9mT4kLd"
    said = [Token(key[start : start + 4], -0.1, {}) for start in range(0, len(key), 4)]

    async def main() -> Divergence:
        async with (
            serve_app(_endpoint([YES, *said], [])) as at_a,
            serve_app(_endpoint([NO, *said], [])) as at_b,
            Client(Endpoint(base_url=at_a, model="m"), Limits(), api_key=key) as one,
            Client(Endpoint(base_url=at_b, model="m"), Limits(), api_key=key) as other,
        ):
            told = await _tokens(Request(sample_id="1", prompt="p", sampling=SamplingParams(max_tokens=8)), one)
            assert [token.text for token in told] == ["yes", "***", *[""] * 5]
            [found] = await look_at_all(_task(), [Sample(id="1", prompt="p", target="1")], one, other)
            return found

    assert asyncio.run(main()).tokens == ("yes", "no")


@pytest.mark.parametrize("chat", [False, True])
def test_both_are_asked_as_the_task_asks_with_log_probabilities(chat: bool) -> None:
    asked: list[dict[str, Any]] = []
    prompt = (Message(role="user", content="Yes or no?"),) if chat else "Yes or no?"
    samples = [Sample(id=str(i), prompt=prompt, target="yes") for i in range(3)]
    assert _look(_endpoint([START, YES], asked), _endpoint([START, SURE], asked), samples) == ["confident"] * 3
    assert len(asked) == 6
    wanted = {"logprobs": True, "top_logprobs": 5} if chat else {"logprobs": 5}
    assert all({name: body[name] for name in wanted} == wanted for body in asked)
    assert all(body["max_tokens"] == 8 and body["temperature"] == 0.0 for body in asked)


def test_an_endpoint_that_refuses_is_asked_once_and_says_why() -> None:
    asked: list[dict[str, Any]] = []
    samples = [Sample(id=str(i), prompt="?", target="yes") for i in range(5)]
    found = _look(_endpoint([START, YES], []), _endpoint([], asked), samples)
    assert found == ["unknown HTTP 400: no logprobs here"] * 5
    assert len(asked) == 1
