"""Other users of the GPUs of this machine."""

from __future__ import annotations

import asyncio
import math
import pwd
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from launchers._machine import local_gpus, smi
from launchers._machine.local_gpus import Gpu
from serve_eval.errors import NoRoomError

FREE_MIB = 1024
"""So much of a GPU may be in use, by a desktop for example, and it still counts as free."""
BACK_S, PAUSE_S = 20.0, 0.5
"""Seconds in which the memory of a GPU comes back after the end of a server, and between two looks
at it."""
NOBODY_TOLD = (
    "nvidia-smi shows no process here; it belongs to another container, or to a process that ended"
)


class Process(NamedTuple):
    """A process that uses a GPU. `mib` None: nvidia-smi does not say how much; `user` "": not known
    here.
    """

    pid: str
    name: str
    mib: int | None
    user: str

    def __str__(self) -> str:
        used = "" if self.mib is None else f", {self.mib} MiB"
        return f"process {self.pid} ({self.name} of {self.user or 'an unknown user'}{used})"


def processes() -> dict[str, list[Process]]:
    """Return the processes that compute, by the UUID of their GPU; none where nvidia-smi does not
    tell.
    """
    found: dict[str, list[Process]] = {}
    query = "--query-compute-apps=gpu_uuid,pid,used_gpu_memory,process_name"
    for line in smi.ask(query, "--format=csv,noheader,nounits") or ():
        match [part.strip() for part in line.split(",", 3)]:  # a name may hold a comma
            case [uuid, pid, mib, name] if pid.isdecimal():
                used = int(mib) if mib.isdecimal() else None
                found.setdefault(uuid, []).append(Process(pid, name, used, _user(pid, name)))
    return found


def in_use(gpus: Iterable[Gpu], used: Mapping[Gpu, int | None] | None) -> dict[Gpu, str]:
    """Return those of the GPUs of which more than FREE_MIB are in use, each with a sentence that
    says by whom.

    Where nvidia-smi tells no memory of a GPU, that of its processes counts.
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
    """Return what is to be said of the GPUs `named`, of which this machine has `gpus`, before
    servers start on them.
    """
    if named and not gpus:
        return [
            "warning: this machine shows no GPU (no nvidia-smi, no /dev/nvidia*): the servers may"
            " not start"
        ]
    if gpus and used is None:
        return [
            "warning: nvidia-smi does not tell of the GPUs: whether anybody uses them is not"
            " checked"
        ]
    return []


async def check_free(
    gpus: Sequence[Gpu], used: Mapping[Gpu, int | None] | None, notify: Callable[[str], None]
) -> Mapping[Gpu, int | None] | None:
    """Return the memory in use, asked again where it was too much: a launch that had the GPU may
    just have ended. Memory that is `late` on all of them is waited for.

    Raises NoRoomError when one of the GPUs is in use, with who uses it.
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
                    "Wait until it is free, name other GPUs, or set launcher.gpus: auto, which"
                    " takes free ones."
                ),
            )
        if deadline is None:
            deadline = time.monotonic() + BACK_S
            notify(waits(waited_for))
        await asyncio.sleep(PAUSE_S)


def late(gpus: Iterable[Gpu], used: Mapping[Gpu, int | None] | None) -> list[Gpu]:
    """Return those of the GPUs with memory in use for which no process that is seen here accounts:
    what a server had comes back only after its end.
    """
    theirs = processes()
    return [
        gpu
        for gpu in gpus
        if (mib := (used or {}).get(gpu)) is not None
        and mib - _sum_accounted(theirs.get(gpu.uuid, [])) > FREE_MIB
    ]


def waits(gpus: Iterable[Gpu]) -> str:
    """Return the line that tells of the wait for memory that is late."""
    numbers = ",".join(gpu.number for gpu in gpus)
    return (
        f"GPU {numbers}: memory is in use by no process that is seen here; waiting up to {BACK_S:g}"
        " s for it"
    )


def _sum_accounted(processes: Iterable[Process]) -> float:
    """The MiB of the processes that are seen here; one that does not tell may have all."""
    return sum(math.inf if one.mib is None else one.mib for one in processes if one.user)


def _user(pid: str, name: str) -> str:
    """The owner of a process; "" where it is not seen here, or where another process has its number
    here.
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
