"""Join or hash every part of an answer that a model wrote. Pure."""

from __future__ import annotations

import hashlib

import msgspec

from serve_eval.schema import Response


def hash_answer(response: Response) -> bytes:
    """Return a hash of a whole answer."""
    if response.exchanges:
        return hashlib.blake2b(
            b"".join(hash_answer(one.response) for one in response.exchanges), digest_size=16
        ).digest()
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
    if response.exchanges:
        return "\n".join(join_text(one.response) for one in response.exchanges)
    calls = "".join(f"{call.name}({call.arguments})" for call in response.tool_calls)
    return (response.reasoning or "") + response.text + calls
