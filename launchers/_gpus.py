"""Which server gets which GPUs, and that nobody else has them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from launchers._environment import for_helpers
from serve_eval.errors import LaunchError, NoRoomError, PlanError

SMI_S = 30.0
"""How long nvidia-smi may take: it is slow on a machine whose driver starts with it."""
LOCK_CHARS = 200
UUID = "GPU-"
"""How the UUID of a whole GPU begins."""


def blocks(
    widths: Sequence[tuple[str, int]], gpus: Sequence[int | str] | None, environ: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """Disjoint blocks in the order of the servers, each given with its name and the number of GPUs that it needs.

    They are cut from `gpus`, else from CUDA_VISIBLE_DEVICES, else counted from 0. Raises PlanError when these are too
    few or one is named twice.
    """
    needed = sum(width for _, width in widths)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if gpus is not None:
        offered, source = [str(gpu).strip() for gpu in gpus], "gpus names"
    elif visible is not None:
        offered, source = [gpu.strip() for gpu in visible.split(",") if gpu.strip()], "CUDA_VISIBLE_DEVICES names"
    else:
        offered, source = [str(i) for i in range(needed)], ""
    if twice := [gpu for gpu, count in Counter(offered).items() if count > 1]:
        raise PlanError(f"launcher: {source} {', '.join(twice)} twice; servers cannot share a GPU")
    if len(offered) < needed:
        each = ", ".join(f"{name} {width}" for name, width in widths if width)
        raise PlanError(
            f"launcher: {needed} GPUs are needed ({each}), and {source} {len(offered)}: {','.join(offered) or 'none'}",
            hint="Name more GPUs, or use fewer servers or less parallelism.",
        )
    cut, start = [], 0
    for _, width in widths:
        cut.append(tuple(offered[start : start + width]))
        start += width
    return cut


class Gpu(NamedTuple):
    """A GPU of this machine by its two names, both of which CUDA_VISIBLE_DEVICES takes."""

    number: str
    uuid: str


def memory_used() -> dict[Gpu, int | None] | None:
    """MiB in use by GPU (None: it does not tell); None where nvidia-smi cannot tell of any."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.used", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(query, capture_output=True, text=True, check=True, timeout=SMI_S, env=for_helpers()).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    used: dict[Gpu, int | None] = {}
    for line in out.splitlines():
        match [part.strip() for part in line.split(",")]:
            case [number, uuid, mib] if number.isdecimal():  # else it is a warning
                used[Gpu(number, uuid)] = int(mib) if mib.isdecimal() else None  # "[N/A]" on some machines
    return used or None


def check_there(gpus: Sequence[str], used: Iterable[Gpu] | None) -> list[str]:
    """The GPUs by their numbers, so that one is known however it is named, by the beginning of its UUID too; what
    nvidia-smi does not list, such as a part of a GPU, by its own name.

    Raises LaunchError when the machine has not all of them or one is named twice; without nvidia-smi nothing is known.
    """
    if used is None:
        return list(gpus)
    known = list(used)
    found = {name: [gpu.number for gpu in known if _is(gpu, name)] for name in gpus}
    of_nvidia = [name for name in found if name.isdecimal() or name.startswith(UUID)]
    if missing := [name for name in of_nvidia if not found[name]]:
        raise NoRoomError(
            f"this machine has {len(known)} GPUs, numbered {', '.join(gpu.number for gpu in known)}, and the plan "
            f"needs number {', '.join(missing)}",
            hint="Use fewer servers or less parallelism, or a machine with more GPUs.",
        )
    numbers = [found[name][0] if found[name] else name for name in gpus]
    if twice := [name for name, number in zip(gpus, numbers, strict=True) if numbers.count(number) > 1]:
        raise LaunchError(
            f"{' and '.join(twice)} are names of the same GPU; servers cannot share one", hint="Name each GPU once."
        )
    return numbers


def _is(gpu: Gpu, name: str) -> bool:
    return name == gpu.number or (name.startswith(UUID) and gpu.uuid.startswith(name))


@contextmanager
def locked(names: Iterable[str]) -> Iterator[tuple[int, ...]]:
    """Keeps other launches of this user from the same things for the block: `GPU-0`, `port-8000`, `folder-/a/b`.

    Yields the descriptors that hold the locks: a process that inherits them holds them until it ends too. Raises
    LaunchError when one is taken.
    """
    folder = Path(tempfile.gettempdir()) / f"serve-eval-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise LaunchError(f"{folder} belongs to somebody else", hint="Set TMPDIR to a folder of your own.")
    held: list[int] = []
    try:
        for name in names:
            file = os.open(folder / _lock_file(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.append(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                owner = os.pread(file, 32, 0).decode().strip() or "unknown"
                kind = NoRoomError if name.startswith("GPU-") else LaunchError
                raise kind(
                    f"{name.replace('-', ' ', 1)} is used by another launch of serve-eval (process {owner})",
                    hint="Wait until it has ended, or name other GPUs, another port or another folder.",
                ) from error
            os.truncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield tuple(held)
    finally:
        for file in held:
            os.close(file)


def _lock_file(name: str) -> str:
    """A name of a file, which has no slash and may not be long."""
    plain = "/" not in name and len(name) <= LOCK_CHARS
    return f"{name if plain else hashlib.sha256(name.encode()).hexdigest()}.lock"
