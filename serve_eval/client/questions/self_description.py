"""The answers in which an endpoint tells of itself: models, version, special tokens, hidden
retries. Pure.
"""

from __future__ import annotations

import re

import msgspec

from serve_eval.client.wire_format.wire import UNREADABLE
from serve_eval.protocol import special_tokens as tokenizer


def version(body: bytes) -> str | None:
    """The version of a /version answer; None when it is not one."""
    try:
        told = msgspec.json.decode(body)["version"]
    except (*UNREADABLE, KeyError, TypeError):
        return None
    return told if isinstance(told, str) else None


def special_tokens(body: bytes) -> dict[str, str]:
    """Return the special tokens that the settings of a tokenizer or of a server tell."""
    try:
        content = msgspec.json.decode(body)
    except UNREADABLE:
        return {}
    return tokenizer.read_texts(content) if isinstance(content, dict) else {}


_RETRIES = re.compile(
    r"^(\w{1,20})_retry_requests_total(?:\{[^}]{0,200}\})? (\d{1,15}(?:\.\d{1,15})?)\s*$",
    re.MULTILINE,
)
_KINDS = {"ctx": "context", "gen": "generation"}


def count_hidden_retries(body: bytes) -> dict[str, int]:
    """What the metrics of an orchestrator of trtllm-serve (Prometheus' text format) say of its own
    retries, by the kind of server that was asked again; empty when they say nothing.
    """
    text = body.decode(errors="replace")
    return {_KINDS.get(kind, kind): int(float(count)) for kind, count in _RETRIES.findall(text)}


LLAMA_CPP_PYTHON = "llama-cpp-python"
_OWNERS = {"me": LLAMA_CPP_PYTHON, "llamacpp": "llama-server"}
"""Who owns the models, as these servers tell."""


def server(body: bytes) -> str | None:
    """Which server a /v1/models answer is from, where that is known by the owner of its models."""
    try:
        return _OWNERS.get(msgspec.json.decode(body)["data"][0]["owned_by"])
    except (*UNREADABLE, KeyError, TypeError, IndexError):
        return None


def model_ids(body: bytes) -> list[str]:
    """The ids of a /v1/models answer; empty when it is not one."""
    try:
        data = msgspec.json.decode(body)
        return [entry["id"] for entry in data["data"] if isinstance(entry["id"], str)]
    except (*UNREADABLE, KeyError, TypeError):
        return []


def context_tokens(body: bytes, model: str | None) -> int | None:
    """The `max_model_len` of a model in a /v1/models answer: of `model`, or of the only one listed;
    else None.
    """
    try:
        data = msgspec.json.decode(body)["data"]
        entry = next(
            (entry for entry in data if entry["id"] == model), data[0] if len(data) == 1 else {}
        )
        told = entry.get("max_model_len")
    except (*UNREADABLE, KeyError, TypeError, IndexError, AttributeError):
        return None
    return told if type(told) is int and told > 0 else None
