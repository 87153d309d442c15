"""The two requests by which a prompt goes from a context server to a generation server. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PARAMS = "kv_transfer_params"
FIRST: Mapping[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
"""Instructions to vLLM's prefill server about the KV cache of a prompt."""
LEFT_OUT = (
    "stream",
    "stream_options",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "logprobs",
    "top_logprobs",
)
"""Fields that the first request leaves out. It must end by length after one token: if it ends in
another way, vLLM keeps no blocks for the generation server."""


def find_obstacle(body: Mapping[str, Any]) -> str | None:
    """Return why vLLM cannot hand this request over; None if it can.

    The hand-over is for one prompt and one answer, and a generation server that fetches the KV
    cache computes no log-probabilities of the prompt.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not all(type(one) is int for one in prompt):
        return "several prompts"
    for name in ("n", "best_of"):
        if body.get(name) not in (None, 1):
            return "several answers"
    if body.get("use_beam_search"):
        return "beam search"
    if body.get("echo") or body.get("prompt_logprobs") is not None:
        return "log-probabilities of the prompt"
    return None


def build_first(body: Mapping[str, Any], *, with_params: bool) -> dict[str, Any]:
    """Return the request to the context server: the same prompt, and an answer of one token.

    `with_params`: the connector hands over by fields of requests.
    """
    first = {name: value for name, value in body.items() if name not in LEFT_OUT}
    for name in ("max_tokens", "max_completion_tokens"):
        if name in first:
            first[name] = 1
    first |= {"max_tokens": 1, "ignore_eos": True}
    if first.get("tool_choice") not in (None, "none", "auto"):
        # An answer of one token cannot be a call. The tools stay in the prompt.
        first["tool_choice"] = "none"
    return {**first, PARAMS: dict(FIRST)} if with_params else first


def build_second(body: Mapping[str, Any], told: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the request to the generation server, with what the context server told."""
    return dict(body) if told is None else {**body, PARAMS: told}


def read_params(answer: object) -> Mapping[str, Any] | None:
    """Return what a context server's answer hands over, or None."""
    params = answer.get(PARAMS) if isinstance(answer, dict) else None
    return params if isinstance(params, dict) and params else None
