"""What every trial found, as lines of a file that is continued."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Keep the result of one command in one trial."""

    system: str
    trial: int
    command: str
    code: int
    found: bool
    requests: float
    tokens: float
    seconds: float
    text: str


def read(file: Path) -> list[Found]:
    """Return the results so far."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Found) for line in lines]


def add(file: Path, found: Found) -> None:
    """Append a result."""
    with file.open("ab") as out:
        out.write(msgspec.json.encode(found) + b"\n")
