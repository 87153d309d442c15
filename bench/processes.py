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
from pathlib import Path
from typing import IO

from cores import CLIENT, pin

KEY = "sk-" + "0123456789abcdef" * 2
"""A key as users have one: what a run receives is searched for it."""


def environment(scratch: Path) -> dict[str, str]:
    """Return the caller's environment without variables that change the tools; data stays local."""
    ours = ("SERVE_EVAL_", "OPENAI_", "HF_", "INTEGRATION_TEST", "TRTLLM_", "LLM_MODELS_ROOT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(scratch / "huggingface"),
        "OPENAI_API_KEY": KEY,
    }


def command_of_run(task: str) -> list[str]:
    """Return the beginning of `serve-eval run` for a task, with the tool of this environment."""
    tool = Path(sys.executable).with_name("serve-eval")
    return [str(tool), "run", "--model", "m", "--no-reference", "--tasks", task]


@dataclass(frozen=True, slots=True)
class Finished:
    """A process that has ended, with CPU time and peak memory of it and its children.

    `sleeps` counts how often it gave its core away to wait, as for a lock, a socket or a time.
    """

    code: int
    cpu_s: float
    wall_s: float
    peak_rss_mb: float
    out: str
    err: str
    sleeps: int = 0

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
            sleeps=usage.ru_nvcsw,
        )


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")
