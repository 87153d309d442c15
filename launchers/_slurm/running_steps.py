"""Find the steps of a SLURM job by name; as a script, end one of them.

Usage: `running_steps.py JOB NAME SIGNAL GRACE_S [COMMAND...]`, run by its path with the standard
library alone. All processes of the step on all its nodes get the signal, and what is left after
GRACE_S seconds is cancelled. SLURM's scancel without a signal kills within a moment, and so does
srun when it gets one itself. COMMAND always runs last.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Mapping

ASK_S = 20.0
"""Seconds that SLURM's controller may take to answer."""
POLL_S = 0.5


def steps(job: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the ids of the job's steps by name; none if the job is over.

    `env` None: our environment, which is that of the step's launch if this is a script. Raises
    OSError and SubprocessError.
    """
    words = ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j"]
    done = subprocess.run(  # noqa: S603
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=False,
        env=env,
    )
    pairs = (line.strip().partition(" ") for line in done.stdout.splitlines())
    return {name.strip(): number for number, _, name in pairs}


def cancel(step: str, *options: str, env: Mapping[str, str] | None = None) -> None:
    """Cancel a step. Raise OSError or SubprocessError."""
    subprocess.run(  # noqa: S603
        ["scancel", *options, step],  # noqa: S607
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=ASK_S,
        check=False,
        env=env,
    )


def end(job: str, name: str, signal: str, grace_s: float) -> None:
    """End the step of that name, if there is one. Raise OSError or SubprocessError."""
    deadline = time.monotonic() + grace_s
    if grace_s > 0 and (step := steps(job).get(name)) is not None:
        cancel(step, f"--signal={signal}")
        while name in steps(job) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    if (step := steps(job).get(name)) is not None:
        cancel(step)


if __name__ == "__main__":
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        end(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
    if last := sys.argv[5:]:
        sys.exit(subprocess.run(last, stdin=subprocess.DEVNULL, check=False).returncode)  # noqa: S603
