"""Child processes that run alone on the client's core; the system reports their use at the end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from cores import CLIENT, pin


@dataclass(frozen=True, slots=True)
class Finished:
    """A process that has ended, with CPU time and peak memory of it and its children."""

    code: int
    cpu_s: float
    wall_s: float
    peak_rss_mb: float
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The last line of its standard error."""
        return (self.err.strip().splitlines() or [f"exit code {self.code}"])[-1][:160]


def run(
    command: Sequence[str],
    *,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    started: Callable[[int], None] = lambda pid: None,
) -> Finished:
    """Run a command to its end on the client's core, and kill it after `limit_s`.

    `started` receives its process id. The peak memory includes that of this process at the fork, so
    the harness imports little.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=env,
            preexec_fn=lambda: pin(CLIENT),
        )
        started(child.pid)
        timer = threading.Timer(limit_s, child.kill)
        timer.start()
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            raise
        finally:
            timer.cancel()
        wall_s = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        unit = 1024**2 if sys.platform == "darwin" else 1024
        return Finished(
            code=child.returncode,
            cpu_s=usage.ru_utime + usage.ru_stime,
            wall_s=wall_s,
            peak_rss_mb=usage.ru_maxrss / unit,
            out=_text(out),
            err=_text(err),
        )


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
