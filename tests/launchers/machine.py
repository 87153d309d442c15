"""Show the machine to a test: its GPUs by a fake nvidia-smi, and processes of servers."""

import os
import time
from pathlib import Path

import pytest

from serve_eval.launchers._machine import local_gpus


def process_number(context, name="trtllm", what="server"):
    """Return a process number from the log of its server: the `server`, or a `rank` of it."""
    log = (context.log_dir / f"{name}.log").read_text()
    return int(log.partition(f"Started {what} process [")[2].partition("]")[0])


def gone(pid):
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


def wait_until_gone(pid, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


MEMORY_USED = local_gpus.memory_used
"""The function that runs nvidia-smi; tests of launchers replace it."""


class Smi:
    """The output of nvidia-smi.

    It has a line per GPU (`0, GPU-a, 17`) and a line per process (`GPU-a, PID, MIB, NAME`).
    """

    def __init__(self, folder):
        self.folder = folder
        self.program = folder / "nvidia-smi"
        folder.mkdir(parents=True, exist_ok=True)
        self.does(
            f"echo asked >> {folder}/asked\n"
            'case "$1" in\n'
            f"  --query-gpu=index,uuid,memory.used) cat {folder}/gpus ;;\n"
            f"  --query-compute-apps=*) cat {folder}/processes ;;\n"
            f"  -L) cat {folder}/listed ;;\n"
            "  *) exit 9 ;;\n"
            "esac"
        )
        self.tells()

    def does(self, script):
        self.program.write_text(f"#!/bin/sh\n{script}\n")
        self.program.chmod(0o755)

    def tells(self, *gpus, processes=(), listed=""):
        for name, lines in (("gpus", gpus), ("processes", processes), ("listed", (listed,))):
            (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def asked(self):
        return (self.folder / "asked").exists()


@pytest.fixture
def smi(own_machine, tmp_path, monkeypatch):
    """Return a fake nvidia-smi for a machine that has no GPU until a test names one."""
    fake = Smi(tmp_path / "smi")
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(local_gpus, "memory_used", MEMORY_USED)
    monkeypatch.setattr(local_gpus, "SIGNS", ())
    return fake
