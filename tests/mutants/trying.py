"""Try a mutant in a copy of the checkout, and decide whether its tests noticed.

A busy machine makes tests exceed their limits and fail in waits of their own. So an outcome that
took long counts only if the unchanged code passes the same tests at that hour.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def list_files(root: Path) -> list[str]:
    """Return the files of the checkout that git knows or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    names = (name for name in listed.stdout.split("\0") if name)
    return [name for name in names if (root / name).is_file() or (root / name).is_symlink()]


def copy_checkout(root: Path, copy: Path) -> Path:
    """Write a copy of the checkout, with its links, in place of an earlier one, and return it."""
    shutil.rmtree(copy, ignore_errors=True)
    for name in list_files(root):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (root / name).is_symlink():
            (copy / name).symlink_to((root / name).readlink())
        else:
            shutil.copy2(root / name, copy / name)
    return copy


SLACK_S = 15.0
"""Seconds that tests may take beyond a multiple of their earlier duration.

A single test may have to build what it shared with others before.
"""
START_S = 5.0
"""Seconds that imports and fixtures of a quick failure may take."""
TRIES = 4
"""Number of times that a mutant is tried, with limits twice as long each time."""

Done = Callable[[dict[str, Any]], dict[str, Any]]
"""Runs the tests of a job; "status" is pytest's exit code, None after the limit."""


def tried(done: Done, files: Mapping[str, str], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return what became of the tests with the changed files, with an "outcome".

    That is `survived`, `killed` or `timeout`, or `undecided` if the unchanged code does not pass
    these tests in their limits either. `seconds` are the earlier durations of the tests, in the
    order to run them.
    """
    result: dict[str, Any] = {}
    for attempt in range(TRIES):
        job = _job(seconds, 2.0**attempt)
        result = done({**job, "files": dict(files)})
        if result["status"] in (0, 5):
            return {**result, "outcome": "survived"}
        over = result["status"] in (None, -signal.SIGALRM)
        if not over and result["seconds"] <= START_S + sum(seconds.values()):
            return {**result, "outcome": "killed"}
        unchanged = done({**job, "files": {}})
        if unchanged["status"] == 0 and unchanged["seconds"] <= job["limit_s"] / 2:
            return {**result, "outcome": "timeout" if over else "killed"}
    return {**result, "outcome": "undecided"}


def _job(seconds: Mapping[str, float], factor: float) -> dict[str, Any]:
    return {
        "tests": {test: factor * _limit_s(taken) for test, taken in seconds.items()},
        "paths": list(dict.fromkeys(test.split("::")[0] for test in seconds)),
        "limit_s": factor * _limit_s(sum(seconds.values())),
        "trace": None,
    }


def _limit_s(taken_s: float) -> float:
    return SLACK_S + 4 * taken_s
