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


class LimitedProcess:
    """A process that runs a script of ours; it may start before its standard input is known.

    It starts in the root folder with -P, so that no code comes from the current one, and without
    the variables of secrets. What it writes to standard error is dropped: V8 writes pages of it.
    `arguments` are those of the script, `cpu_s` the seconds of processor time of its whole life.
    Nothing is raised if it cannot start or ends early: `finish` returns the reason.
    """

    def __init__(self, script: Path, *arguments: str, memory_bytes: int, cpu_s: float) -> None:
        command = [sys.executable, "-P", str(_START), str(memory_bytes), str(max(1, int(cpu_s)))]
        self._process: subprocess.Popen[bytes] | None = None
        self._why = ""
        try:
            self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and script)
                [*command, str(script.resolve()), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=inherit(os.environ),
                start_new_session=True,
            )
        except (OSError, ValueError, MemoryError, RuntimeError) as error:
            self._why = f"it could not be started: {type(error).__name__}: {error}"

    def finish(self, given: bytes, *, limit_s: float) -> LimitedEnd:
        """Write its standard input, wait for its end for at most `limit_s`, and end it then."""
        if self._process is None:
            return LimitedEnd(b"", self._why)
        try:
            written, _ = self._process.communicate(given, timeout=limit_s)
        except subprocess.TimeoutExpired as late:
            return LimitedEnd(late.stdout or b"", f"it took longer than {limit_s:g} s")
        except (OSError, ValueError, MemoryError, RuntimeError) as error:
            return LimitedEnd(b"", f"it could not be used: {type(error).__name__}: {error}")
        finally:
            self.end()
        return LimitedEnd(written, _describe(self._process.returncode))

    def end(self) -> None:
        """End the process if it still runs; do nothing if it has ended."""
        if self._process is not None:
            with self._process as process:
                process.kill()


def run_limited(script: Path, given: bytes, *, limit_s: float, memory_bytes: int) -> LimitedEnd:
    """Run a script with `given` as its standard input until it ends, and never raise for its end.

    `limit_s` are seconds, and seconds of processor time.
    """
    process = LimitedProcess(script, memory_bytes=memory_bytes, cpu_s=limit_s)
    return process.finish(given, limit_s=limit_s)


def _describe(code: int) -> str:
    if code >= 0:
        return f"it ended with the status {code}" if code else ""
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by the signal {-code}"
