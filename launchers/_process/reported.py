"""Read the file in which a server that found a port itself reports its address."""

from __future__ import annotations

from pathlib import Path


def port(report: Path) -> int | None:
    """Return the port of HOST:PORT in the file; None until it is there."""
    try:
        number = int(report.read_text().strip().rpartition(":")[2])
    except (OSError, ValueError):
        return None
    return number if 0 < number < 65536 else None
