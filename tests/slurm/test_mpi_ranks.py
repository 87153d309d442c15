"""Test servers without a wrapper in steps of a real SLURM, with ranks spawned by a real MPI."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import missing

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

from tests.mpi.conftest import ranks, variables
from tests.slurm.conftest import Site, until
from tests.slurm.test_ends import SLOW, answered, gone, result

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

ENOUGH = {"OMPI_MCA_rmaps_base_oversubscribe": "1"}
"""Without it, Open MPI 4 starts no more ranks than there are cores."""
RANK, SERVER = "mpi4py.futures.server", "-P\0-m\0serve_eval.launchers._standin"
DAEMONS = {"pypi": "prte", "debian": "orted"}


@pytest.fixture(params=["pypi", "debian"])
def mpi(request: pytest.FixtureRequest, site: Site) -> str:
    """Return the MPI of the site's image."""
    given = variables(request.param)
    path = os.pathsep.join([site.environ["PATH"], *given.pop("PATH").split(os.pathsep)])
    site.environ.update(given, **ENOUGH, PATH=path, TMPDIR=str(site.folder))
    return str(request.param)


def log(site: Site, name: str) -> Path:
    return site.out / f"logs/{name}.log"


def processes(site: Site, word: str = "") -> list[int]:
    """Return the living processes of the site that have the word on their command lines."""
    wanted, found = f"SITE={site.folder}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                words, variables = (
                    (folder / "cmdline").read_bytes(),
                    (folder / "environ").read_bytes(),
                )
                if word.encode() in words and wanted in variables.split(b"\0"):
                    found.append(int(folder.name))
    return found


def daemons(site: Site, mpi: str) -> list[int]:
    name = DAEMONS[mpi]
    return [
        pid
        for pid in processes(site, name)
        if Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0].endswith(name)
    ]


@pytest.mark.parametrize(
    ("launcher", "sizes"),
    [
        pytest.param(
            {"trtllm": {"tp": 4, "command": "shown-trtllm-serve"}}, {"trtllm": 4}, id="four ranks"
        ),
        pytest.param({"trtllm_disaggregated": {}}, {"context_0": 1, "generation_0": 1}, id="1+1"),
    ],
)
def test_mpi_spawns_the_ranks_of_a_step(
    site: Site, mpi: str, launcher: dict[str, Any], sizes: dict[str, int]
) -> None:
    job = site.submit(site.script(site.command("run", str(site.plan(launcher)))))
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    assert result(site) == (80, 75.0, "PASS")
    for name, size in sizes.items():
        text = log(site, name).read_text()
        assert f"Open MPI v{'5' if mpi == 'pypi' else '4.1'}" in text
        assert sorted(rank for rank, of, _ in ranks(log(site, name)) if of == size) == [
            *range(size)
        ]
        assert text.count("Finished server process") == 1
        assert "Traceback" not in text
    assert "are left" not in site.output(job)
    gone(site, job)
    assert not processes(site)


@pytest.mark.parametrize("who", ["server", "tool", "job"])
def test_no_rank_is_left(site: Site, mpi: str, who: str) -> None:
    """A batch script continues after its tool.

    Open MPI 5's daemon, which would end the ranks, hangs. That of 4.1 leaves the session of its
    server, so a SLURM that knows processes by their parents does not find it.
    """
    run = site.command("run", str(site.plan({"stop_timeout_s": 2})), "--concurrency", "1")
    job = site.submit(
        site.script(f"{run} & echo $! > {site.folder}/pid; wait $!; sleep 100"), STANDIN_FAULTS=SLOW
    )
    until(lambda: answered(site) >= 3)
    [_] = processes(site, RANK)
    [daemon] = daemons(site, mpi)
    if mpi == "pypi":
        os.kill(daemon, signal.SIGSTOP)
    if who == "job":
        site.run("scancel", job)
    else:
        tool = int((site.folder / "pid").read_text())
        os.kill(tool if who == "tool" else processes(site, SERVER)[0], signal.SIGKILL)
    if who == "server":
        until(lambda: "trtllm ended with signal 9" in site.output(job), 20)
    until(lambda: not processes(site, RANK) and not daemons(site, mpi) and not site.servers(), 20)
    if who != "job":
        until(lambda: not site.steps(job), 20)
        assert site.state(job) == "RUNNING"
        site.run("scancel", job)
    site.ended(job)
