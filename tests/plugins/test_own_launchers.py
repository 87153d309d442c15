"""A foreign package called launchers does no harm, and its code does not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = "raise SystemExit('the code of others was run')\n"


def _serve_eval(
    at: Path, *path: Path, command: tuple[str, ...] = ("data", "list", "launchers")
) -> tuple[int, str, str]:
    """Run the command in an empty folder, with these folders first on `sys.path`."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "serve_eval", *command],
        env=environment(PYTHONPATH=os.pathsep.join(map(str, path)), PYTHONDONTWRITEBYTECODE="1"),
        cwd=at,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("file", ["launchers/__init__.py", "launchers.py"])
def test_one_that_is_found_first_does_no_harm_and_does_not_run(tmp_path: Path, file: str) -> None:
    other = tmp_path / "site" / file
    other.parent.mkdir(parents=True)
    other.write_text(FOREIGN)
    code, out, err = _serve_eval(tmp_path, tmp_path / "site", ROOT)
    assert (code, err) == (0, "")
    assert "\n  trtllm: " in out
