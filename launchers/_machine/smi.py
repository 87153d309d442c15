"""Ask nvidia-smi, with a time limit.

If a driver is in trouble, nvidia-smi hangs, and even SIGKILL does not end it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

from serve_eval.launchers._process.environment import for_helpers

SMI_S = 30.0
"""Seconds that it may take: it is slow on a machine whose driver starts with it."""
KILLED_S = 1.0
"""Seconds to wait for it after SIGKILL."""


def ask(*words: str) -> list[str] | None:
    """Return the lines that nvidia-smi prints; None if it is missing, fails or is too slow."""
    code, lines = answer(*words) or (None, [])
    return lines if code == 0 else None


def answer(*words: str) -> tuple[int, list[str]] | None:
    """Return the exit code and the lines; None if it is missing or too slow."""
    try:
        process = subprocess.Popen(  # noqa: S603
            ["nvidia-smi", *words],  # noqa: S607
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=for_helpers(),
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        printed, _ = process.communicate(timeout=SMI_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILLED_S)
        if process.stdout is not None:
            process.stdout.close()
        return None
    return process.returncode, printed.splitlines()
