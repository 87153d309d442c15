"""Count the GPUs that tests may use, and those that the servers of a plan need."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from serve_eval.schema import Plan

ELSEWHERE = ("external", "kubernetes", "slurm")
"""Launchers whose servers do not use the GPUs of this machine."""


def count_gpus(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of GPUs that servers may use here.

    Those are the ones in CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists. None: this machine
    has GPUs that it does not list. Raises PlanError if the variable is wrong.
    """
    from serve_eval.launchers._machine import local_gpus

    if (named := local_gpus.visible(environ)) is not None:
        return len(named)
    used = local_gpus.memory_used()
    if used is not None:
        return len(used)
    return None if local_gpus.any_here(used) else 0


def find_lack(needed: int) -> str | None:
    """Return why a test that needs this number of GPUs cannot run, or None if it can."""
    if needed < 1 or (there := count_gpus()) is None or there >= needed:
        return None
    return f"needs {needed} GPU{'s' * (needed > 1)}, and this machine has {there or 'none'}"


def count_needed(plan: Plan) -> int:
    """Return the GPUs of this machine that the launcher of a plan needs.

    Raises PlanError for options that cannot be launched.
    """
    from serve_eval.evaluation.launch import job_size

    return 0 if plan.launcher.name in ELSEWHERE else job_size(plan).gpus_per_node


def skip_without_room(plan: Plan) -> None:
    """Skip the test if there are fewer GPUs than the launcher of its plan needs."""
    __tracebackhide__ = True
    if (lack := find_lack(count_needed(plan))) is not None:
        pytest.skip(f"launcher {plan.launcher.name} {lack}")


@cache
def has_gpu(kind: str) -> bool:
    """Return True if a GPU here is of this kind: a part of its name, or sm90."""
    from serve_eval.launchers._machine import local_gpus

    lines = local_gpus.ask("--query-gpu=name,compute_cap", "--format=csv,noheader") or []
    for line in lines:
        name, _, capability = line.rpartition(",")
        architecture = f"sm{capability.strip().replace('.', '')}"
        if kind.lower() in name.lower() or kind.lower() == architecture:
            return True
    return False
