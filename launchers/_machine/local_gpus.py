"""GPUs of this machine, and the GPUs of each server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from serve_eval.errors import LaunchError, NoRoomError, PlanError
from serve_eval.launchers._machine import smi
from serve_eval.launchers._machine.lock_files import OF_GPU

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
    lines = smi.ask("--query-gpu=index,uuid,memory.used", "--format=csv,noheader,nounits")
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
    if not names or (lines := smi.ask("-L")) is None:
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
