"""Counts that the benchmark server keeps of its requests."""

from __future__ import annotations

import json
import os
from pathlib import Path


class Counts:
    """Counts of the clients' requests since the last reset."""

    def __init__(self) -> None:
        self.requests = self.in_progress = self.max_in_progress = self.connections = 0
        self.bytes_in = self.bytes_out = 0
        self.watched: int | None = None
        self.cpu_s_at_first: float | None = None

    def received(self) -> None:
        """Count a request for a completion that has arrived whole."""
        self.requests += 1
        self.in_progress += 1
        if self.in_progress > self.max_in_progress:
            self.max_in_progress = self.in_progress
        if self.watched is not None:
            self.cpu_s_at_first, self.watched = _cpu_s(self.watched), None

    def answered(self) -> None:
        """Count an answer that was passed to the system, or whose client is gone."""
        self.in_progress -= 1

    def reset(self) -> None:
        """Forget everything except the requests in progress."""
        self.requests = self.connections = self.bytes_in = self.bytes_out = 0
        self.max_in_progress = self.in_progress
        self.watched = self.cpu_s_at_first = None

    def told(self) -> bytes:
        """Return the counts as JSON."""
        names = ("requests", "max_in_progress", "connections", "cpu_s_at_first")
        names += ("bytes_in", "bytes_out")
        return json.dumps({name: getattr(self, name) for name in names}).encode()


def _cpu_s(pid: int) -> float | None:
    """Return user and system time of all threads of a process so far.

    None where the system does not report it (no Linux).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
