"""Look at this machine: Python, limits, keys, extras, isolation, GPUs, programs of launchers."""

from __future__ import annotations

import asyncio
import platform
import re
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from serve_eval import __version__
from serve_eval.errors import SandboxError, install_command
from serve_eval.launchers._machine import smi
from serve_eval.sandbox.probe import strongest

FILES = 4096
"""Open files that suffice for some thousand requests in flight."""
KEY = "OPENAI_API_KEY"
PROGRAMS: Mapping[str, str] = {
    "trtllm-serve": "the launchers trtllm and trtllm_disaggregated",
    "vllm": "the launchers vllm and vllm_disaggregated",
    "llama-server": "the launcher llama_cpp",
    "docker": "the launcher container",
    "podman": "the launcher container, in place of docker",
    "srun": "servers on SLURM",
    "mpirun": "servers of several MPI ranks",
}
"""Programs that launchers start, with what needs them."""
EXTRAS: Mapping[str, str] = {
    "page": "pictures of pages as SVG",
    "hub": "datasets fetch",
    "tokenizer": "prompts rendered by the client",
    "lm-eval": "tasks of lm-evaluation-harness",
    "kubernetes": "servers in a cluster",
    "servers": "the embedded and the simulated model, the orchestrator of vLLM",
    "watch": "metrics of watch",
    "rouge": "tasks that are scored by ROUGE",
    "media": "tasks with sound, video or translation",
    "longbench": "Chinese tasks of LongBench",
    "instructions": "the checks of ifeval and ifbench",
    "ruler": "long_context",
    "math": "answers that are formulas",
    "holdout": "encrypted cases",
    "inspect": "recent logs of inspect",
}
"""The extras that are looked for, with what needs them."""
_REQUIRED = re.compile(r"\s*([\w.-]+).*;\s*extra\s*==\s*['\"]([\w-]+)['\"]")

DoctorState = Literal["ok", "absent", "problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """One thing that was looked at.

    `absent` is optional, `problem` stops some runs. `fix` says what to do.
    """

    name: str
    state: DoctorState
    text: str
    fix: str = ""


def examine(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Yield what is found, in the order in which a first day needs it."""
    yield DoctorFinding(
        name="serve-eval",
        state="ok",
        text=f"{__version__}, Python {platform.python_version()}, {platform.system()}",
    )
    yield _look_at_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield _look_at_key(environ)
    yield _look_at_isolation()
    yield _look_at_gpus(smi.ask("--query-gpu=name", "--format=csv,noheader"))
    yield from (_look_for_program(name, purpose) for name, purpose in PROGRAMS.items())
    yield from _look_for_extras(metadata.requires("serve-eval") or [])


def _look_at_files(soft: int, hard: int) -> DoctorFinding:
    """Judge the limits of open files. A run raises the soft one as far as it needs."""
    shown = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard:,}"
    if hard == resource.RLIM_INFINITY or hard >= FILES:
        return DoctorFinding(name="open files", state="ok", text=f"{soft:,} now, {shown}")
    return DoctorFinding(
        name="open files",
        state="problem",
        text=f"{shown}: a run has at most about {max(1, hard - 100):,} requests in flight",
        fix=f"ulimit -Hn {FILES}, or in /etc/security/limits.conf",
    )


def _look_at_key(environ: Mapping[str, str]) -> DoctorFinding:
    if environ.get(KEY, "").strip():
        return DoctorFinding(name="key", state="ok", text=f"{KEY} is set")
    return DoctorFinding(
        name="key",
        state="absent",
        text=f"{KEY} is not set; servers of your own often need none",
        fix=f"export {KEY}=..., or name another variable with --api-key-env",
    )


def _look_at_isolation() -> DoctorFinding:
    try:
        _, found = asyncio.run(strongest())
    except SandboxError as error:
        return DoctorFinding(
            name="isolation",
            state="absent",
            text="none works, so tasks that run code of a model are refused",
            fix=error.hint or "",
        )
    return DoctorFinding(name="isolation", state="ok", text=f"{found.name}, for code of a model")


def _look_at_gpus(names: list[str] | None) -> DoctorFinding:
    if not names:
        return DoctorFinding(
            name="GPUs", state="absent", text="none; endpoints elsewhere need none here"
        )
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return DoctorFinding(name="GPUs", state="ok", text=kinds)


def _look_for_program(name: str, purpose: str) -> DoctorFinding:
    if (path := shutil.which(name)) is not None:
        return DoctorFinding(name=name, state="ok", text=f"{path}, for {purpose}")
    return DoctorFinding(name=name, state="absent", text=f"not found; needed by {purpose}")


def _look_for_extras(requirements: list[str]) -> Iterator[DoctorFinding]:
    """Yield each extra, with the packages that it lacks."""
    packages: dict[str, list[str]] = {}
    for requirement in requirements:
        if found := _REQUIRED.match(requirement):
            packages.setdefault(found[2], []).append(found[1])
    for name, purpose in EXTRAS.items():
        lacking = [one for one in packages.get(name, []) if not _is_installed(one)]
        if not lacking:
            yield DoctorFinding(name=f"[{name}]", state="ok", text=f"installed, for {purpose}")
            continue
        yield DoctorFinding(
            name=f"[{name}]",
            state="absent",
            text=f"without {', '.join(lacking)}; needed by {purpose}",
            fix=f"{sys.executable} -m {install_command(name)}",
        )


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
