"""Count processes that the kernel killed because main memory ran out.

A higher count is evidence for why SIGKILL ended a server.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_COUNT = re.compile(r"(?m)^oom_kill (\d+)$")


class Kills(NamedTuple):
    """Kill counts since the machine started; None if they cannot be read."""

    group: int | None
    """Kills in the memory cgroup of this process and its children."""
    machine: int | None

    def since(self, before: Kills) -> str:
        """Return what the difference shows about a server that SIGKILL ended.

        Empty if nothing points at memory.
        """
        if _more(before.group, self.group):
            return (
                "The kernel killed it, or another process of its cgroup, because main"
                " memory ran out."
            )
        if _more(before.machine, self.machine):
            return (
                "Meanwhile the kernel killed a process of this machine, perhaps this"
                " one, because main memory ran out."
            )
        return ""

    def is_known(self) -> bool:
        return self.group is not None or self.machine is not None


def kills(proc: Path = PROC, cgroups: Path = CGROUPS) -> Kills:
    """Return the current counts.

    For the machine, the kernel counts them in /proc/vmstat since Linux 4.13.
    """
    return Kills(_of_group(proc, cgroups), _count(proc / "vmstat"))


def _of_group(proc: Path, cgroups: Path) -> int | None:
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                return _count(
                    cgroups / "memory" / path.lstrip("/") / "memory.oom_control",
                    cgroups / "memory/memory.oom_control",
                )
            if not controllers:
                found = _count(
                    cgroups / path.lstrip("/") / "memory.events", cgroups / "memory.events"
                )
                if found is not None:
                    return found
    return None


def _count(*files: Path) -> int | None:
    """Return the count of the first file that has one.

    Within a container, its own group is the root.
    """
    for file in files:
        with suppress(OSError):
            if found := _COUNT.search(file.read_text()):
                return int(found[1])
    return None


def _more(before: int | None, after: int | None) -> bool:
    return before is not None and after is not None and after > before
