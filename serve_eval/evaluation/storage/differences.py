"""List the differences between two stored plans, fingerprints or other JSON values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import RunFolderError


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
    return [] if old == new else [(where, _brief(old), _brief(new))]


def _brief(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "..."
