"""Run a script of ours in a process with limits, whose death costs the caller nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from serve_eval.processes.environment import inherit

_START = Path(__file__).with_name("limited_start.py")


@dataclass(frozen=True, slots=True)
class LimitedEnd:
    """The standard output of a script, and the reason for an early end ("": there was none)."""

    written: bytes
    why: str = ""


def run_limited(script: Path, given: bytes, *, limit_s: float, memory_bytes: int) -> LimitedEnd:
    """Run a script with `given` as its standard input until it ends, and never raise for its end.

    It starts in the root folder with -P, so that no code comes from the current one, and without
    the variables of secrets. What it writes to standard error is dropped: V8 writes pages of it.
    """
    command = [sys.executable, "-P", str(_START), str(memory_bytes), str(max(1, int(limit_s)))]
    try:
        ended = subprocess.run(  # noqa: S603  (our own interpreter and script)
            [*command, str(script.resolve())],
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=inherit(os.environ),
            timeout=limit_s,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return LimitedEnd(late.stdout or b"", f"it took longer than {limit_s:g} s")
    except (OSError, ValueError, MemoryError, RuntimeError) as error:
        return LimitedEnd(b"", f"it could not be started: {type(error).__name__}: {error}")
    return LimitedEnd(ended.stdout, _describe(ended.returncode))


def _describe(code: int) -> str:
    if code >= 0:
        return f"it ended with the status {code}" if code else ""
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by the signal {-code}"
