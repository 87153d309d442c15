"""Take GPUs that nobody uses for the length of a launch (`gpus: auto`)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from serve_eval.errors import NoRoomError
from serve_eval.launchers._machine import local_gpus, lock_files, neighbours
from serve_eval.launchers._machine.local_gpus import AUTO, Gpu, Named
from serve_eval.launchers._trtllm.command_line import Server


@dataclass(frozen=True, slots=True)
class Reserved:
    """The GPUs of a launch, and the locks that it already holds."""

    gpus: Named
    locks: Mapping[str, int] = field(default_factory=dict)


@asynccontextmanager
async def reserve(
    gpus: Named, servers: Sequence[Server], notify: Callable[[str], None]
) -> AsyncIterator[Reserved]:
    """Take as many free GPUs as the servers need if `gpus` is auto; else keep `gpus`.

    A GPU is free if at most FREE_MIB are in use and no other launch holds it. The choice is among
    those of CUDA_VISIBLE_DEVICES, else all. Waits only for memory that is `late`. Raises
    NoRoomError, with the reasons, if too few are free.
    """
    if gpus != AUTO:
        yield Reserved(gpus)
        return
    needed = sum(len(server.place.gpus) for server in servers)
    deadline = None
    with ExitStack() as stack:
        while True:
            used = await asyncio.to_thread(local_gpus.memory_used)
            offered = _list_offered(used)
            busy = await asyncio.to_thread(neighbours.in_use, offered.values(), used)
            free, locks, unheld, why = _take(offered, busy, needed, stack)
            if len(free) == needed:
                break
            stack.close()
            late = await asyncio.to_thread(neighbours.late, unheld, used)
            if len(free) + len(late) < needed or (
                deadline is not None and time.monotonic() > deadline
            ):
                count = f"{needed} GPU{'s are' if needed > 1 else ' is'} needed"
                raise NoRoomError(
                    "\n".join(
                        [
                            f"launcher.gpus: auto: {count}, and {len(free)} of {len(offered)} free",
                            *why,
                        ]
                    ),
                    hint="Try again when more are free, or use fewer servers or less parallelism.",
                )
            if deadline is None:
                deadline = time.monotonic() + neighbours.BACK_S
                notify(neighbours.waits(late))
            await asyncio.sleep(neighbours.PAUSE_S)
        yield Reserved(free, locks)


def _list_offered(used: Mapping[Gpu, int | None] | None) -> dict[str, Gpu]:
    """Return the GPUs to choose from, by name. Raise NoRoomError if none is known."""
    if used is None:
        raise NoRoomError(
            "launcher.gpus: auto: nvidia-smi reports no GPU on this machine",
            hint="Name the GPUs, as in launcher.gpus: [0].",
        )
    names = local_gpus.visible(os.environ) or [gpu.number for gpu in used]
    return dict(zip(names, local_gpus.check_there(names, used), strict=True))


def _take(
    offered: Mapping[str, Gpu], busy: Mapping[Gpu, str], needed: int, stack: ExitStack
) -> tuple[list[int | str], dict[str, int], list[Gpu], list[str]]:
    """Return the first free GPUs, their locks, busy GPUs that no launch holds, and reasons.

    There is one reason for each GPU that was not taken.
    """
    free: list[int | str] = []
    unheld: list[Gpu] = []
    locks: dict[str, int] = {}
    why: list[str] = []
    for name, gpu in offered.items():
        if len(free) == needed:
            break
        lock = lock_files.lock_names([gpu.lock], held=locks, shown={gpu.lock: f"GPU {gpu.number}"})
        try:
            if gpu in busy:
                with lock:
                    unheld.append(gpu)
                why.append(busy[gpu])
            else:
                locks |= stack.enter_context(lock)
                free.append(name)
        except NoRoomError as error:
            why.append(str(error))
    return free, locks, unheld, why
