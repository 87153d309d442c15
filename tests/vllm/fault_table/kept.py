"""Keep the results of all trials in a file, one per line, to which later calls append.

measured.jsonl has the trials of docs/real-faults.md.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

RESULTS = "found.jsonl"
MEASURED = Path(__file__).with_name("measured.jsonl")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Keep the result of one command in one trial.

    `found`: the command accuses the deployment, or names the fault. `named`: it says where the
    fault is (None: the command has no name for it).
    """

    system: str
    trial: int
    command: str
    code: int
    found: bool
    named: bool | None
    requests: float
    tokens: float
    seconds: float


def read(file: Path) -> list[Found]:
    """Return the results so far."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Found) for line in lines]


def add(file: Path, found: Found) -> None:
    """Append a result."""
    with file.open("ab") as out:
        out.write(msgspec.json.encode(found) + b"\n")
