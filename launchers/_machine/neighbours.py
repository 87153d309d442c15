"""Other users of the GPUs of this machine."""

from __future__ import annotations

import asyncio
import math
import pwd
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from serve_eval.errors import NoRoomError
from serve_eval.launchers._machine import local_gpus, smi
from serve_eval.launchers._machine.local_gpus import Gpu

FREE_MIB = 1024
"""MiB that may be in use on a GPU that counts as free, by a desktop for example."""
BACK_S, PAUSE_S = 20.0, 0.5
"""Seconds until the memory of a GPU is free after a server ended, and seconds between checks."""
NOBODY_TOLD = (
    "nvidia-smi shows no process here; the memory belongs to another container or to a"
    " process that ended"
)


class Process(NamedTuple):
    """A process that uses a GPU.

    `mib` is None if nvidia-smi does not report it; `user` is empty if it is not known here.
    """

    pid: str
    name: str
    mib: int | None
    user: str

    def __str__(self) -> str:
        used = "" if self.mib is None else f", {self.mib} MiB"
        return f"process {self.pid} ({self.name} of {self.user or 'an unknown user'}{used})"


def processes() -> dict[str, list[Process]]:
    """Return the processes that compute, by UUID of their GPU; none if nvidia-smi fails."""
    found: dict[str, list[Process]] = {}
    query = "--query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name"
    for line in smi.ask(query, "--format=csv,noheader,nounits") or ():
        match [part.strip() for part in line.split(",", 3)]:  # a name may contain a comma
            case [uuid, pid, mib, name] if pid.isdecimal():
                used = int(mib) if mib.isdecimal() else None
                found.setdefault(uuid, []).append(Process(pid, name, used, _user(pid, name)))
    return found


def in_use(gpus: Iterable[Gpu], used: Mapping[Gpu, int | None] | None) -> dict[Gpu, str]:
    """Return the GPUs with more than FREE_MIB in use, each with a sentence that names the users.

    If nvidia-smi reports no memory for a GPU, the memory of its processes counts.
    """
    known = {gpu: used[gpu] for gpu in gpus if used is not None and gpu in used}
    if all(mib is not None and mib <= FREE_MIB for mib in known.values()):
        return {}
    theirs, found = processes(), {}
    for gpu, mib in known.items():
        of_it = theirs.get(gpu.uuid, [])
        taken = sum(one.mib or 0 for one in of_it) if mib is None else mib
        if taken > FREE_MIB:
            found[gpu] = (
                f"GPU {gpu.number} has {taken} MiB in use:"
                f" {', '.join(map(str, of_it)) or NOBODY_TOLD}"
            )
    return found


def warnings(
    named: Sequence[str], gpus: Sequence[Gpu], used: Mapping[Gpu, int | None] | None
) -> list[str]:
    """Return warnings about the GPUs `named` before servers start on them.

    `gpus` are those that this machine has.
    """
    if named and not gpus:
        return [
            "warning: this machine shows no GPU (no nvidia-smi, no /dev/nvidia*): the servers may"
            " not start"
        ]
    if gpus and used is None:
        return [
            "warning: nvidia-smi reports no GPUs: cannot check whether another process uses them"
        ]
    return []


async def check_free(
    gpus: Sequence[Gpu], used: Mapping[Gpu, int | None] | None, notify: Callable[[str], None]
) -> Mapping[Gpu, int | None] | None:
    """Return the memory in use, and raise NoRoomError if one of the GPUs is in use.

    If too much is in use, check again, as a launch that had the GPU may have just ended. Wait only
    if the memory is `late` on all such GPUs. The error names the users of the GPU.
    """
    if not await asyncio.to_thread(in_use, gpus, used):
        return used
    deadline = None
    while True:
        used = await asyncio.to_thread(local_gpus.memory_used)
        if not (busy := await asyncio.to_thread(in_use, gpus, used)):
            return used
        waited_for = await asyncio.to_thread(late, busy, used)
        if len(waited_for) < len(busy) or (deadline is not None and time.monotonic() > deadline):
            raise NoRoomError(
                "\n".join(busy.values()),
                hint=(
                    "Wait until it is free, name other GPUs, or set launcher.gpus: auto"
                    " to use free ones."
                ),
            )
        if deadline is None:
            deadline = time.monotonic() + BACK_S
            notify(waits(waited_for))
        await asyncio.sleep(PAUSE_S)


def late(gpus: Iterable[Gpu], used: Mapping[Gpu, int | None] | None) -> list[Gpu]:
    """Return the GPUs whose memory in use belongs to no process that is seen here.

    The memory of a server is released only after its end.
    """
    theirs = processes()
    return [
        gpu
        for gpu in gpus
        if (mib := (used or {}).get(gpu)) is not None
        and mib - _sum_accounted(theirs.get(gpu.uuid, [])) > FREE_MIB
    ]


def waits(gpus: Iterable[Gpu]) -> str:
    """Return the line that announces the wait for memory that is late."""
    numbers = ",".join(gpu.number for gpu in gpus)
    return (
        f"GPU {numbers}: no process that is seen here uses the memory; waiting up to"
        f" {BACK_S:g} s for its release"
    )


def _sum_accounted(processes: Iterable[Process]) -> float:
    """Return the MiB of the processes seen here; one without a number may have all."""
    return sum(math.inf if one.mib is None else one.mib for one in processes if one.user)


def _user(pid: str, name: str) -> str:
    """Return the owner of a process; empty if the process is not seen here.

    Another process may have its number here.
    """
    place = Path("/proc") / pid
    try:
        first = (place / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        if Path(first).name != Path(name).name:
            return ""
        uid = place.stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
