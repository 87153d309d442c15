"""Ask SLURM about a job that is not submitted yet."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from launchers._process.environment import for_helpers
from launchers._slurm.allocation import GPUS
from launchers._slurm.running_steps import ASK_S
from serve_eval.errors import PlanError


def finds_gpus() -> bool | None:
    """Return whether this cluster manages GPUs as resources, or None if that is not known."""
    done = _ask("sinfo", "--noheader", "--format=%G")
    return None if done is None or done.returncode else GPUS.search(done.stdout) is not None


def try_out(script: Path) -> str:
    """Return what `sbatch --test-only` says of a script, or why it was not asked.

    Raises PlanError with sbatch's words if it refuses the script.
    """
    reached = _ask("sinfo", "--noheader", "--format=%P")
    if reached is None:
        return "SLURM's commands are not here, so the script was not checked"
    if reached.returncode:
        return f"SLURM does not answer, so the script was not checked: {_words_of(reached)}"
    done = _ask("sbatch", "--test-only", str(script))
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


def _ask(*words: str) -> subprocess.CompletedProcess[str] | None:
    """Return the result of a SLURM command, or None if it is missing or does not answer."""
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
            env=for_helpers(),
        )
    except (OSError, subprocess.SubprocessError):
        return None
