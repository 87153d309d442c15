"""Mutants that no test can notice, since they do what the code does.

Each is held by its very lines: when the code there changes, its entry no longer counts.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

FILE = Path(__file__).with_name("equivalent.toml")


def listed() -> dict[tuple[str, ...], str]:
    """The reason of each, by its file and the lines of its diff."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8")).get("mutant", [])
    return {
        (entry["file"], *entry["diff"].strip("\n").split("\n")): entry["reason"]
        for entry in entries
    }
