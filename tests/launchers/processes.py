"""The processes of servers, from their logs and from the machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

from serve_eval.schema import LaunchContext


def process_number(context: LaunchContext, name: str = "trtllm", what: str = "server") -> int:
    """Return a process number from the log of its server: the `server`, or a `rank` of it."""
    log = (context.log_dir / f"{name}.log").read_text()
    return int(log.partition(f"Started {what} process [")[2].partition("]")[0])


def gone(pid: int) -> bool:
    """Return True if a process has ended, even if it is a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return Path("/proc/self").exists()


def wait_until_gone(pid: int, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)
