"""Bounds what all processes of a program take together, which no limit of the kernel does for one
process at a time.

It looks now and then: what is taken between two looks may be more, up to the limit per process for
each of them. Pages that a process shares with one that is just ending count in part, since that one
tells nothing any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from serve_eval.errors import SandboxError
from serve_eval.sandbox.isolation import FILES

MEMORY_BYTES = 768 << 20
"""Of all processes and the /tmp of a program together."""
LOOK_S = 0.025
"""Seconds between two looks at a program, of which four run at once; with more, longer, so that to
look stays cheap."""
_SCRATCH = "root/tmp"
_OWN = ("RssAnon", "RssShmem", "VmSwap", "VmPTE")
_SHARED_OUT = ("Pss_Anon", "Pss_Shmem", "SwapPss")
"""Names of /proc/PID/status, quick to read, where shared pages count for everybody; and of
smaps_rollup, where each has its share of them."""


def excess(front: int, scratch: int) -> str | None:
    """What the process tree behind a process has too much of, in words; None where it keeps to its
    bounds. `scratch` is the size of its /tmp in bytes, by which that is known. Raises SandboxError
    where the kernel shows no tree.
    """
    if not Path("/proc/self/task").joinpath(str(os.getpid()), "children").exists():
        raise SandboxError(
            "the kernel does not list the children of a process (CONFIG_PROC_CHILDREN)"
        )
    processes = list(_tree(front))
    in_files, files = next(
        filter(None, (_scratch(pid, scratch) for pid in reversed(processes))), (0, 0)
    )
    if files > FILES:
        return f"it made {files} files, and {FILES} are the most"
    if in_files + sum(_bytes(pid, "status", _OWN) for pid in processes) <= MEMORY_BYTES:
        return None
    taken = in_files + sum(_bytes(pid, "smaps_rollup", _SHARED_OUT) for pid in processes)
    if taken <= MEMORY_BYTES:
        return None
    return (
        f"its processes took {taken >> 20} MiB together, and {MEMORY_BYTES >> 20} MiB are the most"
    )


def _tree(pid: int) -> Iterator[int]:
    yield pid
    children: list[str] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += (task / "children").read_text("ascii").split()
    for child in children:
        yield from _tree(int(child))


def _bytes(pid: int, file: str, names: tuple[str, ...]) -> int:
    """The sum of what a process says of itself under these names. One that cannot be read any more
    takes nothing.
    """
    for thread in _threads(pid):
        with suppress(OSError, ValueError):
            said = Path(f"/proc/{thread}/{file}").read_text("ascii", "replace").splitlines()
            found = [line.split()[1] for line in said if line.partition(":")[0] in names]
            if found:
                return sum(int(kib) << 10 for kib in found)
    return 0


def _threads(pid: int) -> Iterator[int]:
    """A process by each of its threads: the first may be over while the others go on, and then
    tells nothing.
    """
    yield pid
    with suppress(OSError):
        yield from (int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())


def _scratch(pid: int, size: int) -> tuple[int, int] | None:
    """Bytes and files in the /tmp that a process sees; None where it is not the program's (yet)."""
    with suppress(OSError):
        seen = os.statvfs(f"/proc/{pid}/{_SCRATCH}")
        if seen.f_blocks * seen.f_frsize == size:
            return (seen.f_blocks - seen.f_bfree) * seen.f_frsize, seen.f_files - seen.f_ffree
    return None
