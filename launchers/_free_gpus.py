"""`gpus: auto`: GPUs that nobody uses, taken for the length of a launch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from launchers import _gpus, _locks, _neighbours
from launchers._gpus import AUTO, Gpu, Named
from launchers._trtllm_command import Server
from serve_eval.errors import NoRoomError


@dataclass(frozen=True, slots=True)
class Reserved:
    """What the option `gpus` comes to, and the locks that are held already."""

    gpus: Named
    locks: Mapping[str, int] = field(default_factory=dict)


@asynccontextmanager
async def reserved(gpus: Named, servers: Sequence[Server]) -> AsyncIterator[Reserved]:
    """Take as many free GPUs as the servers have places for, where `gpus` is auto; else leave `gpus` as it is.

    Free is one of which at most FREE_MIB are in use and which no other launch holds. Those of CUDA_VISIBLE_DEVICES are
    looked at, else all of them, and none is waited for. Raises NoRoomError when they are too few, with the reasons.
    """
    if gpus != AUTO:
        yield Reserved(gpus)
        return
    needed = sum(len(server.place.gpus) for server in servers)
    used = await asyncio.to_thread(_gpus.memory_used)
    if used is None:
        raise NoRoomError(
            "launcher.gpus: auto: nvidia-smi tells of no GPU on this machine",
            hint="Name the GPUs: launcher.gpus: [0].",
        )
    names = _gpus.visible(os.environ) or [gpu.number for gpu in used]
    offered = dict(zip(names, _gpus.check_there(names, used), strict=True))
    busy = await asyncio.to_thread(_neighbours.in_use, offered.values(), used)
    with ExitStack() as stack:
        free, locks, why = _taken(offered, busy, needed, stack)
        if len(free) < needed:
            count = f"{needed} GPU{'s are' if needed > 1 else ' is'} needed"
            raise NoRoomError(
                "\n".join([f"launcher.gpus: auto: {count}, and {len(free)} of {len(offered)} free", *why]),
                hint="Try again when more are free, or use fewer servers or less parallelism: auto waits for none.",
            )
        yield Reserved(free, locks)


def _taken(
    offered: Mapping[str, Gpu], busy: Mapping[Gpu, str], needed: int, stack: ExitStack
) -> tuple[list[int | str], dict[str, int], list[str]]:
    """The first free ones with their locks, and why each of the others before them was not taken."""
    free: list[int | str] = []
    locks: dict[str, int] = {}
    why: list[str] = []
    for name, gpu in offered.items():
        if len(free) == needed:
            break
        if gpu in busy:
            why.append(busy[gpu])
            continue
        try:
            locks |= stack.enter_context(
                _locks.locked([gpu.lock], held=locks, shown={gpu.lock: f"GPU {gpu.number}"}),
            )
        except NoRoomError as error:
            why.append(str(error))
        else:
            free.append(name)
    return free, locks, why
