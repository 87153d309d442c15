"""Ask SLURM about a job that is not submitted yet."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from serve_eval.errors import PlanError
from serve_eval.launchers._process.environment import for_helpers
from serve_eval.launchers._slurm.allocation import count_gpus
from serve_eval.launchers._slurm.running_steps import ASK_S


def list_gpus() -> list[int] | None:
    """Return the numbers of GPUs that this cluster manages on a node, by kind of node, ascending.

    None if that is not known. Nodes without GPUs do not count.
    """
    done = _ask("sinfo", "--noheader", "--format=%G")
    if done is None or done.returncode:
        return None
    return sorted({count for line in done.stdout.splitlines() if (count := count_gpus(line))})


def try_out(script: Path) -> str:
    """Return what `sbatch --test-only` says of a script, or why it was not asked.

    Raises PlanError with sbatch's words if it refuses the script.
    """
    reached = _ask("sinfo", "--noheader", "--format=%P")
    if reached is None:
        return "SLURM's commands are not here, so the script was not checked"
    if reached.returncode:
        return f"SLURM does not answer, so the script was not checked: {_words_of(reached)}"
    defaults = {name: value for name, value in os.environ.items() if name.startswith("SBATCH_")}
    done = _ask("sbatch", "--test-only", str(script), more=defaults)
    if done is None:
        return "sbatch is not here, or does not answer, so the script was not checked"
    said = _words_of(done)
    if done.returncode:
        raise PlanError(
            f"sbatch --test-only refuses {script}: {said}",
            hint=(
                "Give what the cluster needs, such as --sbatch-arg=--partition=NAME, and write the"
                " job again."
            ),
        )
    return said


def _words_of(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stderr + done.stdout).split())


def _ask(
    *words: str, more: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str] | None:
    """Return the result of a SLURM command, or None if it is missing or does not answer.

    `more` are further variables for it.
    """
    if shutil.which(words[0]) is None:
        return None
    try:
        return subprocess.run(  # noqa: S603
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=False,
            env={**for_helpers(), **more},
        )
    except (OSError, subprocess.SubprocessError):
        return None
