"""A fake nvidia-smi on PATH that shows the GPUs a test wants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serve_eval.launchers._machine import local_gpus

MEMORY_USED = local_gpus.memory_used
"""The function that runs nvidia-smi; tests of launchers replace it."""


class Smi:
    """The output of nvidia-smi.

    It has a line per GPU (`0, GPU-a, 17`) and a line per process (`GPU-a, PID, MIB, NAME`).
    """

    def __init__(self, folder: Path) -> None:
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

    def does(self, script: str) -> None:
        self.program.write_text(f"#!/bin/sh\n{script}\n")
        self.program.chmod(0o755)

    def tells(self, *gpus: str, processes: tuple[str, ...] = (), listed: str = "") -> None:
        for name, lines in (("gpus", gpus), ("processes", processes), ("listed", (listed,))):
            (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def asked(self) -> bool:
        return (self.folder / "asked").exists()


@pytest.fixture
def smi(own_machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """Return a fake nvidia-smi for a machine that has no GPU until a test names one."""
    fake = Smi(tmp_path / "smi")
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(local_gpus, "memory_used", MEMORY_USED)
    monkeypatch.setattr(local_gpus, "SIGNS", ())
    return fake
