"""Find the GPUs of this machine, and the processes that use them.

If a driver is in trouble, nvidia-smi hangs, and even SIGKILL does not end it.
"""

from __future__ import annotations

import asyncio
import math
import os
import pwd
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from serve_eval.errors import LaunchError, NoRoomError, PlanError
from serve_eval.launchers._machine.lock_files import OF_GPU
from serve_eval.launchers._process.environment import for_helpers

Named = list[int | str] | Literal["auto"] | None
"""The option `gpus`: names of GPUs, or `auto` for free ones."""
AUTO = "auto"
UUID = "GPU-"
"""Prefix of the UUID of a whole GPU."""
PART = "MIG-"
"""Prefix of the name of a MIG part of a GPU."""
NAME = re.compile(r"[0-9]+|(?:GPU|MIG)-\S+")
VARIABLE = "CUDA_VISIBLE_DEVICES"
OF_RUNTIME = ("all", "none", "void", "nodevfiles")
"""Values of NVIDIA_VISIBLE_DEVICES, with the one that schedulers set for a job without GPUs."""
SIGNS = ("proc/driver/nvidia/gpus/*", "dev/nvidia[0-9]*", "dev/nvhost-gpu", "dev/dxg", "dev/kfd")
"""Paths below the root that show a GPU of any maker, even if nvidia-smi lists none."""


class Gpu(NamedTuple):
    """A GPU of this machine by its number and UUID; CUDA_VISIBLE_DEVICES accepts both.

    An empty `uuid` means that it is not known.
    """

    number: str
    uuid: str = ""

    @property
    def lock(self) -> str:
        """The name of its lock: numbers differ between jobs and containers on one machine."""
        return self.uuid or f"{OF_GPU}{self.number}"


def blocks(
    widths: Sequence[tuple[str, int]], gpus: Named, environ: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """Return disjoint blocks of GPUs for servers that are given by name and number of GPUs.

    Blocks keep the order of the servers. They come from `gpus`, else from CUDA_VISIBLE_DEVICES,
    else are counted from 0. For `auto`, the counted GPUs are placeholders for those that a launch
    takes. Raises PlanError if the GPUs are too few, if one is named twice, and for invalid names.
    """
    needed = sum(width for _, width in widths)
    if gpus is not None and gpus != AUTO:
        offered, source = _names([str(gpu).strip() for gpu in gpus], "launcher.gpus"), "gpus names"
    elif (shown := visible(environ) if needed else None) is not None:
        offered, source = shown, f"{VARIABLE} names"
    else:
        offered, source = [str(i) for i in range(needed)], ""
    if twice := [gpu for gpu, count in Counter(offered).items() if count > 1]:
        raise PlanError(
            f"launcher: {source} {', '.join(twice)} twice; servers cannot share a GPU",
            hint="Name each GPU once.",
        )
    if len(offered) < needed:
        each = ", ".join(f"{name} {width}" for name, width in widths if width)
        raise PlanError(
            f"launcher: {needed} GPUs are needed ({each}), and {source} {len(offered)}:"
            f" {','.join(offered) or 'none'}",
            hint="Name more GPUs, or use fewer servers or less parallelism.",
        )
    cut, start = [], 0
    for _, width in widths:
        cut.append(tuple(offered[start : start + width]))
        start += width
    return cut


def visible(environ: Mapping[str, str]) -> list[str] | None:
    """Return the names in CUDA_VISIBLE_DEVICES; None if it is not set.

    Raises PlanError for a name that CUDA rejects, because CUDA then hides that GPU and all after
    it.
    """
    if (text := environ.get(VARIABLE)) is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) > 1 and not names[-1]:
        names.pop()  # CUDA also accepts a comma at the end
    return _names(names, f"{VARIABLE}={text}")


def _names(names: list[str], where: str) -> list[str]:
    """Return the names. Raise PlanError for the first one that is not a GPU."""
    for name in names:
        if NAME.fullmatch(name):
            continue
        if name.lower() in OF_RUNTIME:
            why = (
                f"{name} is a value of NVIDIA_VISIBLE_DEVICES or of a scheduler, which"
                " CUDA does not accept"
            )
        elif name.startswith("-") or not name:
            why = (
                "it hides the GPUs"
                if len(names) == 1
                else f"{name or 'nothing'} is among the names of GPUs"
            )
        else:
            why = f"{name} is not the name of a GPU"
        if where.startswith(VARIABLE):
            hint = (
                f"Unset {VARIABLE}, or name GPUs there or in launcher.gpus: by number, or by UUID"
                " (GPU-..., MIG-...)."
            )
        else:
            hint = "Name GPUs by number, or by UUID (GPU-..., MIG-...), or set launcher.gpus: auto."
        raise PlanError(f"{where}: {why}", hint=hint)
    return names


def memory_used() -> dict[Gpu, int | None] | None:
    """Return the MiB in use by GPU; None if nvidia-smi reports no GPU.

    A value of None means that nvidia-smi does not report it for this GPU.
    """
    lines = ask("--query-gpu=index,uuid,memory.used", "--format=csv,noheader,nounits")
    used: dict[Gpu, int | None] = {}
    for line in lines or ():
        match [part.strip() for part in line.split(",")]:
            case [number, uuid, mib] if number.isdecimal():  # other lines are warnings
                used[Gpu(number, uuid)] = (
                    int(mib) if mib.isdecimal() else None
                )  # "[N/A]" on some machines
    return used or None


def any_here(used: Mapping[Gpu, int | None] | None) -> bool:
    """Return True if nvidia-smi or the kernel shows a GPU of this machine."""
    return used is not None or any(any(Path("/").glob(sign)) for sign in SIGNS)


def check_there(names: Sequence[str], used: Iterable[Gpu] | None) -> list[Gpu]:
    """Return the GPUs with these names: numbers, UUIDs or the beginning of a UUID.

    A name that nvidia-smi does not list, such as a MIG part, stands for itself.

    Raises LaunchError if the machine lacks one or one is named twice. Without nvidia-smi nothing is
    checked.
    """
    if used is None:
        return [Gpu(name) for name in names]
    known = list(used)
    found = {name: [gpu for gpu in known if _is(gpu, name)] for name in names}
    if missing := [name for name in found if not found[name] and not name.startswith(PART)]:
        count = f"{len(known)} GPU{'s' * (len(known) != 1)}"
        raise NoRoomError(
            f"this machine has {count}, numbered {', '.join(gpu.number for gpu in known)}, and the"
            f" plan needs number {', '.join(missing)}",
            hint=(
                "Name other GPUs, or use fewer servers, less parallelism, or a machine with more"
                " GPUs."
            ),
        )
    _check_parts([name for name in names if name.startswith(PART)])
    gpus = [found[name][0] if found[name] else Gpu(name) for name in names]
    if twice := [name for name, gpu in zip(names, gpus, strict=True) if gpus.count(gpu) > 1]:
        raise LaunchError(
            f"{' and '.join(twice)} name the same GPU; servers cannot share one",
            hint="Name each GPU once.",
        )
    return gpus


def _check_parts(names: Sequence[str]) -> None:
    """Raise NoRoomError for MIG parts that nvidia-smi does not list, if it works."""
    if not names or (lines := ask("-L")) is None:
        return
    listed = re.findall(rf"{PART}[^)\s]+", "\n".join(lines))
    if missing := [name for name in names if not any(one.startswith(name) for one in listed)]:
        raise NoRoomError(
            f"this machine has no {', '.join(missing)}; its MIG parts:"
            f" {', '.join(listed) or 'none'}",
            hint="nvidia-smi -L lists GPUs and their parts with their UUIDs.",
        )


def _is(gpu: Gpu, name: str) -> bool:
    return name == gpu.number or (name.startswith(UUID) and gpu.uuid.startswith(name))


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
    for line in ask(query, "--format=csv,noheader,nounits") or ():
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
        used = await asyncio.to_thread(memory_used)
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


SMI_S = 30.0
"""Seconds that it may take: it is slow on a machine whose driver starts with it."""
KILLED_S = 1.0
"""Seconds to wait for it after SIGKILL."""


def ask(*words: str) -> list[str] | None:
    """Return the lines that nvidia-smi prints; None if it is missing, fails or is too slow."""
    code, lines = answer(*words) or (None, [])
    return lines if code == 0 else None


def answer(*words: str) -> tuple[int, list[str]] | None:
    """Return the exit code and the lines; None if it is missing or too slow."""
    try:
        process = subprocess.Popen(  # noqa: S603
            ["nvidia-smi", *words],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=for_helpers(),
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        printed, _ = process.communicate(timeout=SMI_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_S)
        if process.stdout is not None:
            process.stdout.close()
        return None
    return process.returncode, printed.splitlines()
