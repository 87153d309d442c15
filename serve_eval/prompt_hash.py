"""The hash by which the story and the simulator both know a prompt."""

from __future__ import annotations

import hashlib

import msgspec

from serve_eval.schema import Prompt


def prompt_sha256(prompt: Prompt) -> str:
    """Hex sha256 of a text, or of the JSON list of [role, content] pairs of messages."""
    if isinstance(prompt, str):
        return hashlib.sha256(prompt.encode()).hexdigest()
    return hashlib.sha256(msgspec.json.encode([[turn.role, turn.content] for turn in prompt])).hexdigest()
