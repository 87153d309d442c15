"""Test commands of a user without a home, under umask 077, with an installation they cannot write.

The user may read everything, since the interpreter of these tests may lie in a closed folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment

NOBODY = "65534"
RUN = ("run", "--launcher", "simulated", "--tasks", "word_problems", "--limit", "4")


def _as_nobody(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    setpriv = shutil.which("setpriv")
    if setpriv is None or os.geteuid() != 0:
        pytest.skip("only root can become another user, with setpriv")
    kept = environment(HOME="/nonexistent", PYTHONPATH=str(Path(__file__).parents[2]))
    environ = {name: value for name, value in kept.items() if not name.startswith("XDG_")}
    return subprocess.run(
        [
            *(setpriv, "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"),
            *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
            *("bash", "-c", 'umask 077; exec "$@"', "bash"),
            *(sys.executable, "-B", "-m", "serve_eval", *words),
        ],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_ordinary_user_runs_reads_and_is_told_of_a_folder_that_is_closed() -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ordinary-") as made:
        folder = Path(made)
        folder.chmod(0o777)
        done = _as_nobody(folder, *RUN, "--no-reference")
        assert done.returncode == 3, done.stderr
        shown = _as_nobody(folder, "show", "outputs/latest")
        assert shown.returncode == 0, shown.stderr
        again = _as_nobody(folder, *RUN, "--no-reference", "-o", "outputs/latest")
        assert (again.returncode, "Traceback" in again.stderr) == (3, False), again.stderr
        (folder / "closed").mkdir(mode=0o755)
        closed = _as_nobody(folder, *RUN, "--no-reference", "-o", "closed/run")
        assert closed.returncode == 2
        assert "error: closed/run: cannot be used as a run folder: Permission denied" in (
            closed.stderr
        )
        folder.chmod(0o755)
        here = _as_nobody(folder / "closed", *RUN, "--no-reference")
        assert here.returncode == 2
        assert "no folder can be made here: Permission denied" in here.stderr
