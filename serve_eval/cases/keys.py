"""What a case is known by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serve_eval.schema import Message, Override, SamplingParams

KEY_HEX = 12


def compat_md5(case: Mapping[str, Any]) -> str:
    """BioChatter's own key of an expanded case: the MD5 of its JSON as Python writes it, keys in
    the order of the file. It names rows of old results, and protects nothing.
    """
    return hashlib.md5(json.dumps(case).encode(), usedforsecurity=False).hexdigest()


def canonical_sha256(value: object) -> str:
    """Hex SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def question_sha256(
    turns: Sequence[Message], sampling: SamplingParams, override: Override | None
) -> str:
    """Hex SHA-256 of all that is asked: turns with their images, and how the answer is sampled,
    tools included.
    """
    return canonical_sha256({"turns": turns, "sampling": sampling, "override": override})


def sample_id(name: str, question: str) -> str:
    """The id of a sample: the name of its case, and so much of the hash of its question that
    another question is another sample. The letter keeps it from reading as the number of a
    repeat.
    """
    return f"{name}#q{question[:KEY_HEX]}"
