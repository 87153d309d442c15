"""List the differences between two stored plans, fingerprints or other JSON values."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError

LONGEST, BEFORE = 80, 20
"""Characters of a value that a line shows, and how many stand before its difference."""


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Return the differences between two JSON values as lines `path: was X, now Y`."""
    return [f"{path}: was {was}, now {now}" for path, was, now in list_differing(old, new, where)]


def refuse_other(folder: Path, what: str, known: Any, wanted: Any) -> None:
    """Raise RunFolderError if a folder holds another one of these than is wanted.

    `known` are the JSON values that the folder holds, or None for a new folder.
    """
    if known is not None and (differing := differences(known, wanted)):
        raise RunFolderError(
            f"{folder} holds another {what}:\n" + "\n".join(f"  {line}" for line in differing),
            hint="Use another folder with -o.",
        )


def list_differing(old: Any, new: Any, where: str = "") -> list[tuple[str, str, str]]:
    """Return the paths at which two JSON values differ, each with both values in brief."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(k for k in new if k not in old)]
        return [
            one
            for key in keys
            for one in list_differing(
                old.get(key), new.get(key), f"{where}.{key}" if where else str(key)
            )
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [one for i, (a, b) in pairs for one in list_differing(a, b, f"{where}[{i}]")]
    return [] if old == new else [(where, *_brief(old, new))]


def _brief(old: Any, new: Any) -> tuple[str, str]:
    """Return two values in brief, each around the place at which they part."""
    texts = [msgspec.json.encode(value).decode() for value in (old, new)]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    was, now = (_cut(text, same) for text in texts)
    return was, now


def _cut(text: str, place: int) -> str:
    """Return at most LONGEST characters of a text, with a few before `place`."""
    if len(text) <= LONGEST:
        return text
    kept = LONGEST - 6
    start = max(0, min(place - BEFORE, len(text) - kept))
    end = start + kept
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"
