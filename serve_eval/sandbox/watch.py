"""Limit the total memory and files of a program's processes, since the kernel limits only each one.

It checks at intervals. Between two checks, a program may use more, up to the limit per process for
each process. Pages that a process shares with one that is just ending count in part, since the
ending process no longer reports its share.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from serve_eval.errors import SandboxError
from serve_eval.sandbox.isolation import FILES

MEMORY_BYTES = 768 << 20
"""Limit for all processes and the /tmp of a program together, unless the program has another."""
LOOK_S = 0.025
"""Seconds between two checks of a program if up to four run at a time. With more programs the
interval is longer, so that checks stay cheap."""
_SCRATCH = "root/tmp"
_OWN = ("RssAnon", "RssShmem", "VmSwap", "VmPTE")
_SHARED_OUT = ("Pss_Anon", "Pss_Shmem", "SwapPss")
"""Names of /proc/PID/status, which is quick to read but counts shared pages for each process, and
of smaps_rollup, which counts the share of each."""


def excess(front: int, scratch: int, memory: int = MEMORY_BYTES) -> str | None:
    """Return the limit that a process tree exceeds, in words, or None if it exceeds none.

    `front` is the first process of the tree, and `memory` the limit in bytes. `scratch` is the size
    of the program's /tmp in bytes, which identifies it. Raises SandboxError if the kernel shows no
    tree.
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
        return f"it made {files} files; the limit is {FILES}"
    if in_files + sum(_bytes(pid, "status", _OWN) for pid in processes) <= memory:
        return None
    taken = in_files + sum(_bytes(pid, "smaps_rollup", _SHARED_OUT) for pid in processes)
    if taken <= memory:
        return None
    return f"its processes took {taken >> 20} MiB together; the limit is {memory >> 20} MiB"


def _tree(pid: int) -> Iterator[int]:
    yield pid
    children: list[str] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += (task / "children").read_text("ascii").split()
    for child in children:
        yield from _tree(int(child))


def _bytes(pid: int, file: str, names: tuple[str, ...]) -> int:
    """Return the sum of a process's values under these names.

    A process that can no longer be read has none.
    """
    for thread in _threads(pid):
        with suppress(OSError, ValueError):
            said = Path(f"/proc/{thread}/{file}").read_text("ascii", "replace").splitlines()
            found = [line.split()[1] for line in said if line.partition(":")[0] in names]
            if found:
                return sum(int(kib) << 10 for kib in found)
    return 0


def _threads(pid: int) -> Iterator[int]:
    """Yield a process by each of its threads.

    The first thread may have ended while others run, and then has no values.
    """
    yield pid
    with suppress(OSError):
        yield from (int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())


def _scratch(pid: int, size: int) -> tuple[int, int] | None:
    """Return the bytes and files in the /tmp of a process, or None if it is not the program's."""
    with suppress(OSError):
        seen = os.statvfs(f"/proc/{pid}/{_SCRATCH}")
        if seen.f_blocks * seen.f_frsize == size:
            return (seen.f_blocks - seen.f_bfree) * seen.f_frsize, seen.f_files - seen.f_ffree
    return None
