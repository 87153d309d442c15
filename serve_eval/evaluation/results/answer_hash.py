"""Tell whether two answers are the same in every part that a model wrote. Pure."""

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
