"""The machine of a measurement, without which its figures mean nothing."""

from __future__ import annotations

import os
import platform
import resource
import sys
from importlib import metadata
from pathlib import Path

from processes import run

_SHOWN = ("aiohttp", "lm-eval", "msgspec", "openai", "httpx2", "uvloop")


def facts() -> list[str]:
    """Return lines about the machine, the Python and the libraries."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        (
            f"{os.cpu_count()} cores of {_cpu()}, {platform.system()} {platform.release()}, {files}"
            " open files allowed"
        ),
        (
            f"Python {platform.python_version()},"
            f" {', '.join(f'{name} {_version(name)}' for name in _SHOWN)}"
        ),
    ]


def load() -> str:
    """Return the load average of the last minute."""
    return f"{os.getloadavg()[0]:.2f}"


def yardstick_s(rounds: int = 3) -> float:
    """Return the CPU seconds of the yardstick loop in a process, the least of some rounds."""
    command = [sys.executable, str(Path(__file__).with_name("yardstick.py")), "loop"]
    return min(run(command, limit_s=60).cpu_s for _ in range(rounds))


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
