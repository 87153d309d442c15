"""Write what commands about references found as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

SCHEMA = 1
"""Version of the object."""


def write_figures(found: Mapping[str, object]) -> bytes:
    """Return a JSON object with what was found; a path is text."""
    told = msgspec.to_builtins({"schema_version": SCHEMA, **found}, enc_hook=_write_path)
    return msgspec.json.encode(told)


def _write_path(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} is no JSON")
