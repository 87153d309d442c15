"""Test the two requests of a hand-over, and which requests vLLM cannot hand over."""

from __future__ import annotations

from typing import Any

import pytest

from serve_eval.launchers._vllm.orchestrator import (
    FIRST,
    build_first,
    build_second,
    find_obstacle,
    read_params,
)

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def test_the_context_server_is_asked_for_one_token_and_cannot_end_earlier() -> None:
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


def test_a_connector_that_finds_the_cache_itself_gets_no_params() -> None:
    assert "kv_transfer_params" not in build_first({"prompt": "Hi"}, with_params=False)


def test_the_prompt_of_a_chat_stays_the_same() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    asked: dict[str, Any] = {
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
def test_a_free_choice_of_tools_stays(choice: str | None) -> None:
    asked = {**CHAT, "tool_choice": choice}
    assert build_first(asked, with_params=True)["tool_choice"] == choice


def test_the_generation_server_gets_the_whole_request_and_what_was_handed_over() -> None:
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
def test_what_cannot_be_handed_over(body: dict[str, Any], obstacle: str | None) -> None:
    assert find_obstacle(body) == obstacle


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"kv_transfer_params": None}, {"kv_transfer_params": {}}, {"x": 1}]
)
def test_an_answer_that_hands_nothing_over(answer: object) -> None:
    assert read_params(answer) is None
