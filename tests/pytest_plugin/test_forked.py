"""Test that a fork is a program of its own: arguments, folder, environment, streams, exit code."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.forked import run_forked

SHOWS = """
import atexit, os, sys
atexit.register(print, "the end")
print(sys.argv[1:], os.getcwd(), sorted(os.environ), repr(sys.stdin.read()))
print("\\u00fc", file=sys.stderr)
"""


def _run(folder: Path, program: str, *words: str, timeout_s: float = 60.0) -> tuple[object, ...]:
    (folder / "it.py").write_text(program)
    done = run_forked("it", *words, folder=folder, env={"A": "1"}, timeout_s=timeout_s)
    return (done.returncode, done.stdout, done.stderr)


def test_it_has_its_own_arguments_folder_environment_and_streams(tmp_path: Path) -> None:
    said = f"['-x', 'y z'] {tmp_path} ['A'] ''\nthe end\n"
    assert _run(tmp_path, SHOWS, "-x", "y z") == (0, said, "\u00fc\n")


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_it_has_its_own_exit_code(tmp_path: Path, program: str, code: int) -> None:
    assert _run(tmp_path, program) == (code, "", "")


def test_an_error_leaves_the_next_program_as_it_was(tmp_path: Path) -> None:
    code, _, said = _run(tmp_path, "import os; os.chdir('/'); import sys; sys.left = 1; 1 / 0")
    assert (code, "ZeroDivisionError" in str(said)) == (1, True)
    again = "import os, sys; print(os.getcwd(), hasattr(sys, 'left'))"
    assert _run(tmp_path, again)[1] == f"{tmp_path} False\n"


def test_one_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    text = "import pathlib, time; time.sleep(0.3); pathlib.Path('late').touch()"
    with pytest.raises(subprocess.TimeoutExpired):
        _run(tmp_path, text, timeout_s=0.1)
    assert _run(tmp_path, "import time; time.sleep(0.3)")[0] == 0
    assert not (tmp_path / "late").exists()
