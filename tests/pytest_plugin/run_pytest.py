"""Run pytest with the plug-in in a process of its own, as a user does."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from tests.cli.command import environment

ROOT = Path(__file__).resolve().parents[2]
MODULE = "serve_eval.pytest_plugin.plugin"
NO_OTHERS = ("-p", "no:kmock", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")


def build_command(*arguments: str) -> list[str]:
    """Return a command line; the plug-in is named if no installed package declares it."""
    declared = any(one.value == MODULE for one in metadata.entry_points(group="pytest11"))
    named = () if declared else ("-p", MODULE)
    return [sys.executable, "-m", "pytest", *NO_OTHERS, *named, *arguments]


def build_environment(**variables: str) -> dict[str, str]:
    """Return the environment of a user whose terminal has 80 columns."""
    return environment(**{"PYTHONPATH": str(ROOT), "COLUMNS": "80", **variables})


def run_pytest(
    folder: Path, *arguments: str, timeout_s: float = 240, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder and return what it printed."""
    return subprocess.run(
        build_command(*arguments),
        cwd=folder,
        env=build_environment(**variables),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
