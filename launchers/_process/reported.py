"""The file in which a server that found a port itself tells where it listens."""

from __future__ import annotations

from pathlib import Path


def port(report: Path) -> int | None:
    """The port that the file tells, as HOST:PORT; None while it does not."""
    try:
        number = int(report.read_text().strip().rpartition(":")[2])
    except (OSError, ValueError):
        return None
    return number if 0 < number < 65536 else None
