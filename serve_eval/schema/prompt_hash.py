"""Numbers derived from a prompt, on which the run and the simulated endpoint must agree."""

from __future__ import annotations

import hashlib

import msgspec

from serve_eval.schema import Prompt


def prompt_sha256(prompt: Prompt) -> str:
    """Return the hex SHA-256 of a prompt.

    It is that of a text's UTF-8, or of the compact JSON list of [role, content] pairs of messages,
    including images as they are sent.
    """
    if isinstance(prompt, str):
        return hashlib.sha256(prompt.encode()).hexdigest()
    return hashlib.sha256(
        msgspec.json.encode([[turn.role, turn.content] for turn in prompt])
    ).hexdigest()


def uniform(key: str) -> float:
    """Return a number in [0, 1] that is fixed for a key and looks uniformly random over keys."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
