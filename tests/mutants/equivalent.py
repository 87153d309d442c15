"""List mutants that no test can notice, since they do what the code does.

Each entry is bound to exact lines: if the code there changes, the entry no longer counts.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

FILE = Path(__file__).with_name("equivalent.toml")


def listed() -> dict[tuple[str, ...], str]:
    """Return the reason of each entry, by its file and the lines of its diff."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8")).get("mutant", [])
    return {
        (entry["file"], *entry["diff"].strip("\n").split("\n")): entry["reason"]
        for entry in entries
    }
