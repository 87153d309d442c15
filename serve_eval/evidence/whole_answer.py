"""Join or hash every part of an answer that a model wrote. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from serve_eval.schema import Response


def hash_answer(response: Response) -> bytes:
    """Return a hash of a whole answer."""
    parts = (
        response.reasoning,
        response.text,
        response.tool_calls,
        response.prompt_logprobs and response.prompt_logprobs.values,
        response.choice_logprobs,
    )
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).digest()


def join_text(response: Response) -> str:
    """Return what an answer says: reasoning, text and tool calls, concatenated."""
    calls = "".join(f"{call.name}({call.arguments})" for call in response.tool_calls)
    return (response.reasoning or "") + response.text + calls
