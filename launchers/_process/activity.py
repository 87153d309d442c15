"""Measure CPU time and bytes read below a process, to see if it still works."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from serve_eval.launchers._process.supervisor import descendants

SAMPLE_S = 1.0
"""Minimum seconds between two samples: CPU time is counted in hundredths of a second."""
IDLE_SHARE = 0.05
"""Share of a CPU below which a process is idle. One that polls every millisecond, as idle MPI pools
do, uses 0.03."""
IDLE_BYTES_PER_S = 1 << 20
"""Bytes per second below which a process is idle. One that loads from a slow disk uses hardly any
CPU time."""


class Used(NamedTuple):
    """Use of CPU and disk by a process since its start, including children that ended."""

    cpu_s: float
    bytes_read: int


class Activity:
    """The processes below `root`, sampled repeatedly. Without /proc nothing is known."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._at: float | None = None
        self._before: Mapping[int, Used] = {}
        self._busy_at = 0.0

    def idle_s(self, now: float) -> float | None:
        """Return the seconds that all processes were idle at the last sample; None without any."""
        if self._at is None or now - self._at >= SAMPLE_S:
            used = {
                pid: one for pid in descendants(self.root) if (one := measure_use(pid)) is not None
            }
            if not used:
                self._at = None
                return None
            if self._at is None or busy(self._before, used, now - self._at):
                self._busy_at = now
            self._at, self._before = now, used
        return self._at - self._busy_at


def busy(before: Mapping[int, Used], after: Mapping[int, Used], seconds: float) -> bool:
    """Return True if a process worked between two samples that are `seconds` apart.

    A new process began with 0.
    """
    none = Used(0.0, 0)
    return any(
        now.cpu_s - before.get(pid, none).cpu_s > IDLE_SHARE * seconds
        or now.bytes_read - before.get(pid, none).bytes_read > IDLE_BYTES_PER_S * seconds
        for pid, now in after.items()
    )


def measure_use(pid: int) -> Used | None:
    """Return what a process used; None if it is gone."""
    folder, read = Path(f"/proc/{pid}"), 0
    with suppress(OSError, ValueError, IndexError):
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        cpu_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        with suppress(OSError, ValueError, KeyError):
            counts = dict(line.split(": ") for line in (folder / "io").read_text().splitlines())
            read = max(int(counts["rchar"]), int(counts["read_bytes"]))
        return Used(cpu_s, read)
    return None
