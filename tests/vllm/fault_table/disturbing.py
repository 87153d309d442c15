"""Disturb servers in the middle of a run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.vllm.deployments import PYTHON

PATIENCE_S = 60.0
ANSWERS = 10
"""Answers after which a server is killed."""


def count_answers(out: Path) -> int:
    """Return the number of answers in the folder of a run, or of the runs of several loads."""
    return sum(len(file.read_bytes().splitlines()) for file in out.glob("**/samples/*"))


def wait_for_answers(out: Path, number: int) -> None:
    """Wait until a run has so many answers, or for PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while count_answers(out) < number and time.monotonic() < deadline:
        time.sleep(0.1)


def _list_processes() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the number and the command line of each process; others may end at any time."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                yield int(folder.name), (folder / "cmdline").read_bytes().split(b"\0")


def kill_when_asked(url: str, out: Path) -> None:
    """Kill the server at an address after the first answers of a run."""
    port = url.rpartition(":")[2].encode()
    [pid] = [pid for pid, words in _list_processes() if words[0] == bytes(PYTHON) and port in words]
    wait_for_answers(out, ANSWERS)
    os.kill(pid, signal.SIGKILL)
