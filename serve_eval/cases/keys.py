"""Keys and ids that identify a case."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serve_eval.schema import Message, Override, SamplingParams
from serve_eval.schema.prompt_hash import put_checksums

KEY_HEX = 12


def compat_md5(case: Mapping[str, Any]) -> str:
    """Return BioChatter's key of an expanded case.

    It is the MD5 of the JSON that Python writes, with keys in the order of the file. It identifies
    rows of old results and has no security purpose.
    """
    return hashlib.md5(json.dumps(case).encode(), usedforsecurity=False).hexdigest()


def canonical_sha256(value: object) -> str:
    """Return the hex SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def question_sha256(
    turns: Sequence[Message], sampling: SamplingParams, override: Override | None
) -> str:
    """Return the hex SHA-256 of a question: turns with media, sampling options and tools."""
    asked = list(map(put_checksums, turns))
    return canonical_sha256({"turns": asked, "sampling": sampling, "override": override})


def sample_id(name: str, question: str) -> str:
    """Return the id of a sample: the name of its case, and the start of its question's hash.

    A changed question is therefore another sample. The letter q distinguishes the hash from the
    number of a repeat.
    """
    return f"{name}#q{question[:KEY_HEX]}"
