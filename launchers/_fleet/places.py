"""Place servers on the GPUs and ports of this machine, on GPUs that nobody uses."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from serve_eval.errors import NoRoomError, PlanError
from serve_eval.launchers._machine import hosts, local_gpus, lock_files
from serve_eval.launchers._machine import local_gpus as neighbours
from serve_eval.launchers._machine.local_gpus import AUTO, Gpu, Named
from serve_eval.launchers._options import LOOPBACK
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.servers import Part

FIRST_PORT = 8000
"""First port that a dry run shows where a launch takes free ports: the orchestrator's; its servers
use the next ones."""


def place_parts(
    parts: Sequence[Part],
    *,
    gpus: local_gpus.Named,
    host: str,
    port: int | None,
    ports: Sequence[int] | None = None,
) -> list[tuple[Part, Place]]:
    """Return every part with its place; `host` and `port` are for the last part.

    The other parts bind loopback. `ports` are that of the last part, then those of the others
    (None: those that a dry run shows). Raises PlanError if the GPUs are too few or a port is out of
    range.
    """
    first = check_shown_port(port)
    hosts.check(host)
    front, *others = ports or range(first, first + len(parts))
    blocks = local_gpus.blocks([(part.name, part.width) for part in parts], gpus, os.environ)
    places = [
        Place(host=LOOPBACK, port=number, gpus=block)
        for number, block in zip(others, blocks[:-1], strict=True)
    ]
    return list(zip(parts, [*places, Place(host=host, port=front, gpus=blocks[-1])], strict=True))


def check_shown_port(port: int | None) -> int:
    """Return the endpoint's port in a dry run. Raise PlanError if it is out of range."""
    if port is not None and not 0 < port < 65536:
        raise PlanError(
            f"launcher.port: {port} is out of range; give one from 1 to 65535, or leave"
            " it out for a free one"
        )
    return FIRST_PORT if port is None else port


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
