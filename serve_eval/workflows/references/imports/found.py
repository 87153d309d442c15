"""Types of what a reader of another tool's files returns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_eval.schema import Sample, TextPart

Turns = Sequence[tuple[str, str]]
"""A chat: role and text of each turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSample:
    """The scores of one answer by metric, and a digest of its prompt (None: it is not recorded).

    A metric whose score is no finite number lacks. Several answers to a prompt are as many samples.
    """

    prompt: bytes | None
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundResult:
    """The result of one task in the files of another tool.

    `scores` are by metric, on the scale of one answer; the first is the tool's main one. `count` is
    the number of prompts (None: unknown). `told` has the parts of the protocol that the files hold,
    under the names of our options; a part that they lack is absent. `samples` is None if they have
    no scores of single answers. `remarks` are for the reader of the import. `family` names the
    table of names: the tool, or the tool that it started.
    """

    family: str
    tool: str
    file: Path
    task: str
    model: str | None
    scores: Mapping[str, float]
    count: int | None = None
    date: str | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[FoundSample] | None = None
    remarks: Sequence[str] = ()


def digest_prompt(prompt: str | Turns) -> bytes:
    """Return the SHA-256 of a prompt: of a text, or of the roles and texts of a chat.

    A chat of one user turn differs from its text, as the two are other requests.
    """
    text = prompt if isinstance(prompt, str) else json.dumps([list(turn) for turn in prompt])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def digest_choices(texts: Sequence[str]) -> bytes:
    """Return the SHA-256 of a question by likelihoods: each choice with the text before it."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).digest()


def digest_sample(sample: Sample) -> bytes | None:
    """Return the digest of a sample of ours; None for one with media, which no digest covers."""
    if sample.choices:
        return digest_choices([before + choice for before, choice in sample.continued])
    if isinstance(sample.prompt, str):
        return digest_prompt(sample.prompt)
    plain = all(
        isinstance(turn.content, str) or all(isinstance(one, TextPart) for one in turn.content)
        for turn in sample.prompt
    )
    return digest_prompt([(turn.role, turn.text) for turn in sample.prompt]) if plain else None
