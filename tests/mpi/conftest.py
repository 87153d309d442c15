"""Fixtures: servers of the stand-in with ranks of real MPI, and a search for their processes."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve_eval.launchers._machine import local_gpus
from serve_eval.schema import LaunchContext
from tests.root import ROOT
from tests.standin.deployments import FOLDER as STANDIN
from tests.standin.deployments import environment

FOLDER = Path(os.environ.get("MPIS", ROOT / ".venv-mpi"))
"""The folder in which build.sh installs."""
MARK = "STANDIN_TEST_RUN"
LIBRARY = "libmpi.so.40"
RANK = re.compile(r"MPI rank (\d+) of (\d+): process \[(\d+)\]")
OURS = ("OMPI_", "PMIX_", "PRTE_", "OPAL_", "MPI4PY_")
WAIT_S = 60.0


def libraries():
    """Return the installed MPIs by origin."""
    found = {"pypi": [FOLDER / "lib" / LIBRARY], "debian": [*Path("/usr/lib").glob(f"*/{LIBRARY}")]}
    usable = packages() is not None
    return {
        name: paths[0] for name, paths in found.items() if usable and paths and paths[0].exists()
    }


def packages():
    """Return the folder of mpi4py, which both MPIs need."""
    return next(iter((FOLDER / "lib").glob("python*/site-packages")), None)


def variables(name):
    """Return the variables with which the stand-in starts ranks of that MPI.

    Skips the test if it is not installed.
    """
    there = libraries()
    if name not in there:
        pytest.skip(f"make test-mpi installs the MPI of {name}")
    path = [os.environ["PATH"], *([str(FOLDER / "bin")] if name == "pypi" else [])]
    return {
        "STANDIN_MPI": "1",
        "MPI4PY_LIBMPI": str(there[name]),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{packages()}",
        "PATH": os.pathsep.join(path),
    }


@dataclass(frozen=True)
class Mpi:
    """An MPI, with a mark that all processes started with it carry."""

    name: str
    mark: str
    environ: dict[str, str]

    @property
    def mpirun(self):
        folder = FOLDER / "bin" if self.name == "pypi" else Path("/usr/bin")
        return [str(folder / "mpirun"), "--allow-run-as-root"]

    def processes(self, word=""):
        """Return the living processes with the mark that have the word on their command lines."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with suppress(OSError):
                    marked = f"{MARK}={self.mark}".encode() in (
                        folder / "environ"
                    ).read_bytes().split(b"\0")
                    if marked and word.encode() in (folder / "cmdline").read_bytes():
                        found.append(int(folder.name))
        return found

    def check_all_gone(self):
        until(lambda: not self.processes(), 20, self.processes)


@pytest.fixture
def ordinary_user():
    """Do not change the user, who is root in most cases."""


@pytest.fixture(params=["pypi", "debian"])
def mpi(request, tmp_path, monkeypatch):
    """Set up a user's environment for either MPI, with the stand-in as trtllm-serve."""
    given = variables(request.param)
    for name in [name for name in os.environ if name.startswith((*OURS, "SLURM_", "CUDA_"))]:
        monkeypatch.delenv(name)
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    path = os.pathsep.join([str(STANDIN), given.pop("PATH")])
    env = environment(
        **given, XDG_CACHE_HOME=str(tmp_path / "cache"), TMPDIR=str(tmp_path), PATH=path
    )
    env[MARK] = mark
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(local_gpus, "memory_used", lambda: None)
    found = Mpi(request.param, mark, env)
    try:
        yield found
        found.check_all_gone()
    finally:
        for pid in found.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def said():
    return []


@pytest.fixture
def context(tmp_path, said, mpi):
    return LaunchContext(model="org/model", log_dir=tmp_path / "logs", notify=said.append)


def ranks(log):
    """Return rank, world size and process of each rank from the server's log."""
    text = log.read_text() if log.exists() else ""
    return [(int(rank), int(size), int(pid)) for rank, size, pid in RANK.findall(text)]


def until(true, timeout_s=WAIT_S, about=str):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, about()
        time.sleep(0.05)
