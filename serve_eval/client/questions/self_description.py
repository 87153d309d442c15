"""Read what an endpoint reports: models, version, special tokens, hidden retries. Pure."""

from __future__ import annotations

import re

import msgspec

from serve_eval.client.wire_format.wire import UNREADABLE
from serve_eval.protocol import special_tokens as tokenizer

VERSION_ROUTES = ("/version",)
SGLANG_ROUTES = ("/server_info", "/get_server_info")
"""The routes at which SGLang tells its version among its options; older ones have the second."""


def version_routes(server: str | None) -> tuple[str, ...]:
    """Return the routes below the root at which a kind of server may tell its version."""
    return SGLANG_ROUTES if server == SGLANG else VERSION_ROUTES


def version(body: bytes) -> str | None:
    """Return the version in an answer of one of the version_routes, or None."""
    try:
        told = msgspec.json.decode(body)["version"]
    except (*UNREADABLE, KeyError, TypeError):
        return None
    return told if isinstance(told, str) else None


def special_tokens(body: bytes) -> dict[str, str]:
    """Return the special tokens in the settings of a tokenizer or a server."""
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
    """Return an orchestrator's own retries by the kind of server, from its Prometheus metrics.

    Empty if the metrics of trtllm-serve do not contain them.
    """
    text = body.decode(errors="replace")
    return {_KINDS.get(kind, kind): int(float(count)) for kind, count in _RETRIES.findall(text)}


LLAMA_CPP_PYTHON, VLLM, TRTLLM_SERVE = "llama-cpp-python", "vLLM", "trtllm-serve"
SGLANG = "SGLang"
_OWNERS = {
    "me": LLAMA_CPP_PYTHON,
    "llamacpp": "llama-server",
    "vllm": VLLM,
    "sglang": SGLANG,
    "tensorrt_llm": TRTLLM_SERVE,
}
"""The owners that these servers report for their models."""


def server(body: bytes) -> str | None:
    """Return the kind of server behind a /v1/models answer, if the models' owner reveals it."""
    try:
        return _OWNERS.get(msgspec.json.decode(body)["data"][0]["owned_by"])
    except (*UNREADABLE, KeyError, TypeError, IndexError):
        return None


def is_page(body: bytes) -> bool:
    """Return True if an answer is an HTML page, which no endpoint sends."""
    return body.lstrip()[:14].lower().startswith((b"<html", b"<!doctype html"))


def model_ids(body: bytes) -> list[str]:
    """Return the ids in a /v1/models answer; empty if it is not one."""
    try:
        data = msgspec.json.decode(body)
        return [entry["id"] for entry in data["data"] if isinstance(entry["id"], str)]
    except (*UNREADABLE, KeyError, TypeError):
        return []


def context_tokens(body: bytes, model: str | None) -> int | None:
    """Return the `max_model_len` of `model`, or of the only model, in a /v1/models answer."""
    try:
        data = msgspec.json.decode(body)["data"]
        entry = next(
            (entry for entry in data if entry["id"] == model), data[0] if len(data) == 1 else {}
        )
        told = entry.get("max_model_len")
    except (*UNREADABLE, KeyError, TypeError, IndexError, AttributeError):
        return None
    return told if type(told) is int and told > 0 else None
