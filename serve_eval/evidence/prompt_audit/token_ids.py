"""Read token ids and counts from replies of vLLM, trtllm-serve and llama.cpp. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from serve_eval.evidence.prompt_audit.pieces import decode_piece
from serve_eval.schema import Prompt

RETURN_FIELD = "return_token_ids"
TOKENIZE, INTERNAL = "/tokenize", "/_internal/tokenize"
"""The routes of vLLM (and llama.cpp) and of trtllm-serve, which takes texts only."""


class ReturnedIds(NamedTuple):
    """The token ids that an answer contains, of its prompt and of its text, if it does."""

    prompt: list[int] | None
    answer: list[int] | None


class TokenizedPrompt(NamedTuple):
    """The tokens that a tokenizing route gives for a prompt, with their texts if it has them."""

    ids: list[int]
    pieces: list[str] | None


def read_ids(told: object) -> list[int] | None:
    """Return token ids, or None if it is no list of them or an empty one."""
    if not isinstance(told, list) or not told:
        return None
    return told if all(type(one) is int for one in told) else None


def read_returned(choice: Mapping[str, Any], whole: Mapping[str, Any]) -> ReturnedIds:
    """Return the ids in a choice of an answer. Those of a prompt may be outside the choice."""
    prompt = choice.get("prompt_token_ids") or whole.get("prompt_token_ids")
    return ReturnedIds(read_ids(prompt), read_ids(choice.get("token_ids")))


def read_tokenized(body: object) -> TokenizedPrompt | None:
    """Return the tokens in a reply: vLLM's ids, or llama.cpp's objects with id and piece."""
    told = body.get("tokens") if isinstance(body, dict) else None
    if (ids := read_ids(told)) is not None:
        assert isinstance(body, dict)
        return TokenizedPrompt(ids, _pieces(body.get("token_strs"), len(ids)))
    if not isinstance(told, list) or not all(isinstance(one, dict) for one in told):
        return None
    if (ids := read_ids([one.get("id") for one in told])) is None:
        return None
    return TokenizedPrompt(ids, _pieces([_piece(one.get("piece")) for one in told], len(ids)))


def _pieces(told: object, length: int) -> list[str] | None:
    if not isinstance(told, list) or len(told) != length:
        return None
    if not all(isinstance(one, str) for one in told):
        return None
    return [decode_piece(one) for one in told]


def _piece(told: object) -> object:
    """Return the text of a token of llama.cpp, which writes a part of a character as bytes."""
    if isinstance(told, list) and all(type(one) is int and 0 <= one < 256 for one in told):
        return bytes(told).decode(errors="replace")
    return told


def read_rendered(body: object) -> list[int] | None:
    """Return the ids in a reply of /render: one request, or a list of them for completions."""
    if isinstance(body, list) and body:
        body = body[0]
    return read_ids(body.get("token_ids")) if isinstance(body, dict) else None


def read_count(body: object, *names: str) -> int | None:
    """Return the number under these names in a reply, or None if there is none above 0."""
    for name in names:
        body = body.get(name) if isinstance(body, dict) else None
    return body if type(body) is int and body > 0 else None


def tokenizing_body(prompt: Prompt) -> dict[str, Any]:
    """Return the fields that ask vLLM's /tokenize for the tokens of a prompt."""
    if isinstance(prompt, str):
        return {"prompt": prompt}
    return {"messages": turns_of(prompt), "add_generation_prompt": True}


def turns_of(prompt: Prompt) -> list[dict[str, str]]:
    """Return a prompt as the messages of a chat request."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": turn.role, "content": turn.text} for turn in prompt]


def describe_difference(one: list[int], other: list[int]) -> str:
    """Return in words where two different lists of ids differ first."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is None:
        return f"{len(one)} of them, not {len(other)}"
    return f"{one[at]}, not {other[at]}, at position {at}"
