"""Test the detection of known server quirks.

Quirks that a server does not report are named; quirks that show in an answer are detected.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from serve_eval.client.client import Client
from serve_eval.client.questions import LLAMA_CPP_PYTHON
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities import probe
from serve_eval.evaluation.endpoint.launch import quirks
from serve_eval.schema import Endpoint, Limits, Message, Need, Plan, SamplingParams, Spec, Task
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer, Received
from tests.evaluation.test_capabilities import prepared

CHAT = (Message(role="user", content="Hi"),)
QUICK = Limits(stall_timeout_s=20.0, connect_timeout_s=10.0, sample_timeout_s=40.0, max_attempts=2)
EXTERNAL = Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"})


def _task(**more: Any) -> Task:
    return replace(prepared().task, **more)


def _said(task: Task, *, server: str | None = LLAMA_CPP_PYTHON, **plan: Any) -> list[str]:
    endpoint = Endpoint(base_url="http://127.0.0.1:1/v1", info={"server": server} if server else {})
    return quirks(
        Plan(**{"model": "m", "launcher": EXTERNAL, "tasks": (), **plan}), endpoint, [task]
    )


STREAMING = Limits(stream=True)
WARM = {"sampling": SamplingParams(max_tokens=5, temperature=0.7)}


@pytest.mark.parametrize(
    ("task", "circumstances", "words"),
    [
        (_task(), {}, []),
        (_task(prompt_logprobs=True), {}, []),
        (_task(), {"limits": STREAMING}, ["--interrupt_requests false"]),
        (_task(), {"limits": Limits(stream=True, concurrency=1)}, []),
        (_task(), {"limits": STREAMING, "launcher": Spec(name="llama_cpp")}, []),
        (_task(), {"server": None, "limits": STREAMING}, []),
        (_task(), {"server": "llama-server", "limits": STREAMING}, []),
        (
            _task(**WARM),
            {"server": None, "launcher": Spec(name="transformers_serve")},
            ["do_sample"],
        ),
        (
            _task(),
            {"server": None, "launcher": Spec(name="transformers_serve"), "repeats": 3},
            ["do_sample"],
        ),
        (_task(), {"server": None, "launcher": Spec(name="transformers_serve")}, []),
    ],
)
def test_what_bears_on_a_run_is_said_and_nothing_else(
    task: Task, circumstances: dict[str, Any], words: list[str]
) -> None:
    said = _said(task, **circumstances)
    assert len(said) == len(words)
    assert all(word in line for word, line in zip(words, said, strict=True))


@pytest.mark.parametrize(
    ("listed", "server"),
    [
        ([{"id": "m", "object": "model", "owned_by": "me", "permissions": []}], LLAMA_CPP_PYTHON),
        ([{"id": "m", "owned_by": "llamacpp"}], "llama-server"),
        ([{"id": "m", "owned_by": "vllm", "max_model_len": 512}], "vLLM"),
        ([{"id": "m", "owned_by": "tensorrt_llm"}], "trtllm-serve"),
        ([{"id": "m", "owned_by": "somebody"}], None),
        ([{"id": "m", "owned_by": ["me"]}], None),
        ([{"id": "m"}], None),
        ([], None),
        ("none", None),
    ],
)
def test_a_server_is_known_by_the_owner_of_its_models(listed: Any, server: str | None) -> None:
    body = json.dumps({"object": "list", "data": listed}).encode()

    async def main() -> dict[str, object]:
        async with (
            FaultyServer([act.replies(body)]) as fake,
            Client(Endpoint(base_url=fake.base_url), QUICK) as client,
        ):
            return await client.describe()

    assert asyncio.run(main()).get("server") == server


def _long_answer(tokens: int) -> act.Act:
    async def answers(turn: act.Turn) -> None:
        body = json.loads(act.answer(turn.request))
        body["usage"]["completion_tokens"] = tokens if _ignored(turn.request) else 2
        await turn.write(act.http(json.dumps(body).encode()))

    return answers


def _ignored(request: Received) -> bool:
    """Return True if a server ignores the limit and generates to the end of its context.

    llama-cpp-python knows only max_tokens.
    """
    return "max_tokens" not in request.body


@pytest.mark.parametrize(("tokens", "refused"), [(1000, True), (7, True), (6, False), (2, False)])
def test_a_length_that_is_ignored_is_told_before_anything_is_asked(
    tokens: int, refused: bool
) -> None:
    async def main() -> None:
        async with (
            FaultyServer([_long_answer(tokens)]) as fake,
            Client(
                Endpoint(base_url=fake.base_url, model="m"),
                QUICK,
                max_tokens_field="max_completion_tokens",
            ) as client,
        ):
            await probe(client, [prepared(prompt=CHAT)])

    if not refused:
        asyncio.run(main())
        return
    with pytest.raises(EndpointError) as told:
        asyncio.run(main())
    assert f"ignored max_completion_tokens: requested 2 tokens, received {tokens}" in str(
        told.value
    )
    assert "--set connection.max_tokens_field=max_tokens" in told.value.hint


WORDS = ["one", "two", "three", "four", "five", "six"]


def _weighs(shift: int) -> act.Act:
    """Serve a model that always says WORDS and echoes prompts with wrong log-probabilities.

    They are those of the token `shift` places further on. llama-cpp-python is off by one if no
    token begins every text.
    """

    async def answers(turn: act.Turn) -> None:
        body = json.loads(act.answer(turn.request, "".join(f" {word}" for word in WORDS)))
        if turn.request.body.get("echo"):
            prompt = turn.request.question
            tokens = re.findall(r"\s*\S+", prompt)
            places = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
            likely = [*tokens[shift:], *[" end"] * shift]
            tops = [
                {best: -0.1, token: -0.1 if token == best else -9.0}
                for token, best in zip(tokens, likely, strict=True)
            ]
            values = [top[token] for token, top in zip(tokens, tops, strict=True)]
            body["choices"][0]["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": [None, *values[1:]],
                "top_logprobs": [None, *tops[1:]],
                "text_offset": places,
            }
            body["usage"]["prompt_tokens"] = len(tokens)
        await turn.write(act.http(json.dumps(body).encode()))

    return answers


@pytest.mark.parametrize(("shift", "works"), [(0, True), (1, False)])
def test_log_probabilities_at_wrong_tokens_are_none(shift: int, works: bool) -> None:
    async def main() -> None:
        async with (
            FaultyServer([_weighs(shift)]) as fake,
            Client(Endpoint(base_url=fake.base_url, model="m"), QUICK) as client,
        ):
            found, lacking = await probe(client, [prepared(prompt_logprobs=True)])
            [ability] = [one for one in found if one.need is Need.PROMPT_LOGPROBS]
            assert ability.works is works
            assert bool(lacking) is not works
            assert (
                works
                or "of 6 tokens generated by the model, only 0 are the likeliest at" in ability.seen
            )

    asyncio.run(main())
