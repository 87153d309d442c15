"""GPUs of this machine, and those of each server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from launchers._machine import smi
from launchers._machine.lock_files import OF_GPU
from serve_eval.errors import LaunchError, NoRoomError, PlanError

Named = list[int | str] | Literal["auto"] | None
"""The option `gpus`: names of GPUs, or `auto` for free ones."""
AUTO = "auto"
UUID = "GPU-"
"""The start of the UUID of a whole GPU."""
PART = "MIG-"
"""The start of the name of a part of a GPU."""
NAME = re.compile(r"[0-9]+|(?:GPU|MIG)-\S+")
VARIABLE = "CUDA_VISIBLE_DEVICES"
OF_RUNTIME = ("all", "none", "void", "nodevfiles")
"""Words of NVIDIA_VISIBLE_DEVICES, and the one that schedulers set for a job without GPUs."""
SIGNS = ("proc/driver/nvidia/gpus/*", "dev/nvidia[0-9]*", "dev/nvhost-gpu", "dev/dxg", "dev/kfd")
"""Where, below the root, a machine shows that it has a GPU, of whatever maker, though no nvidia-smi
lists it."""


class Gpu(NamedTuple):
    """A GPU of this machine by its two names, both of which CUDA_VISIBLE_DEVICES takes; no `uuid`:
    it is not known.
    """

    number: str
    uuid: str = ""

    @property
    def lock(self) -> str:
        """The name of its lock: numbers differ between the jobs and containers of one machine."""
        return self.uuid or f"{OF_GPU}{self.number}"


def blocks(
    widths: Sequence[tuple[str, int]], gpus: Named, environ: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """Return disjoint blocks in the order of the servers, each given with its name and the number
    of its GPUs.

    They are cut from `gpus`, else from CUDA_VISIBLE_DEVICES, else counted from 0; those of `auto`
    stand for the ones that a launch takes. Raises PlanError when these are too few, when one is
    named twice, and for what names none.
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
    """Return the names in CUDA_VISIBLE_DEVICES; None where it is not set. Raises PlanError for what
    CUDA does not take, which hides that GPU and all after it.
    """
    if (text := environ.get(VARIABLE)) is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if len(names) > 1 and not names[-1]:
        names.pop()  # CUDA, too, takes a comma at the end
    return _names(names, f"{VARIABLE}={text}")


def _names(names: list[str], where: str) -> list[str]:
    """Raises PlanError for the first that names no GPU."""
    for name in names:
        if NAME.fullmatch(name):
            continue
        if name.lower() in OF_RUNTIME:
            why = (
                f"{name} is a word of NVIDIA_VISIBLE_DEVICES or of a scheduler, which CUDA does not"
                " know"
            )
        elif name.startswith("-") or not name:
            why = (
                "it hides the GPUs"
                if len(names) == 1
                else f"{name or 'nothing'} stands among the names of GPUs"
            )
        else:
            why = f"{name} names no GPU"
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
    """Return the MiB in use by GPU (None: it does not tell); None where nvidia-smi cannot tell of
    any.
    """
    lines = smi.ask("--query-gpu=index,uuid,memory.used", "--format=csv,noheader,nounits")
    used: dict[Gpu, int | None] = {}
    for line in lines or ():
        match [part.strip() for part in line.split(",")]:
            case [number, uuid, mib] if number.isdecimal():  # else it is a warning
                used[Gpu(number, uuid)] = (
                    int(mib) if mib.isdecimal() else None
                )  # "[N/A]" on some machines
    return used or None


def any_here(used: Mapping[Gpu, int | None] | None) -> bool:
    """Return true if nvidia-smi or the kernel shows a GPU of this machine."""
    return used is not None or any(any(Path("/").glob(sign)) for sign in SIGNS)


def check_there(names: Sequence[str], used: Iterable[Gpu] | None) -> list[Gpu]:
    """Return the GPUs of these names, however each is named, by the beginning of its UUID too; what
    nvidia-smi does not list, such as a part of a GPU, by its own name.

    Raises LaunchError when the machine has not all of them or one is named twice; without
    nvidia-smi nothing is known.
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
            f"{' and '.join(twice)} are names of the same GPU; servers cannot share one",
            hint="Name each GPU once.",
        )
    return gpus


def _check_parts(names: Sequence[str]) -> None:
    """Raises NoRoomError for parts of GPUs that nvidia-smi does not list, where it lists GPUs at
    all.
    """
    if not names or (lines := smi.ask("-L")) is None:
        return
    listed = re.findall(rf"{PART}[^)\s]+", "\n".join(lines))
    if missing := [name for name in names if not any(one.startswith(name) for one in listed)]:
        raise NoRoomError(
            f"this machine has no {', '.join(missing)}; its parts of GPUs:"
            f" {', '.join(listed) or 'none'}",
            hint="nvidia-smi -L lists GPUs and their parts with their UUIDs.",
        )


def _is(gpu: Gpu, name: str) -> bool:
    return name == gpu.number or (name.startswith(UUID) and gpu.uuid.startswith(name))
