"""Test servers with ranks of real MPI: they live and end with it, or an error explains why not."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serve_eval.launchers import trtllm
from serve_eval.launchers._logs.last_error import cause
from serve_eval.launchers._trtllm.server_variables import AS_ROOT
from serve_eval.schema import Endpoint, LaunchContext
from tests.mpi.conftest import ROOT, Mpi, ranks, until
from tests.standin.process import FOLDER as STANDIN
from tests.standin.process import free_port, running

pytestmark = [pytest.mark.slow, pytest.mark.mpi]

ONLY_4, ONLY_5 = (
    pytest.mark.parametrize("mpi", [name], indirect=True) for name in ("debian", "pypi")
)
MORE = (os.cpu_count() or 1) + 1
"""More ranks than this machine has cores."""
ENOUGH = "OMPI_MCA_rmaps_base_oversubscribe"


def start(context: LaunchContext, story: Any, **options: Any) -> Any:
    async def tell() -> Any:
        async with trtllm.launch(
            context,
            trtllm.TrtllmOptions(**{"ready_timeout_s": 60.0, "stop_timeout_s": 10.0, **options}),
        ) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell())


@pytest.mark.parametrize("tp", [1, MORE])
def test_ranks_live_and_end_with_their_server(
    mpi: Mpi, tp: int, context: LaunchContext, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a setting of the user gives Open MPI 4 slots for more ranks than cores."""
    monkeypatch.setenv(ENOUGH, "1")
    log = context.log_dir / "trtllm.log"

    async def story(endpoint: Endpoint) -> list[int]:
        assert sorted(rank for rank, size, _ in ranks(log) if size == tp) == [*range(tp)]
        return mpi.processes("mpi4py.futures.server")

    found = start(context, story, tp=tp)
    assert sorted(found) == sorted(pid for _, _, pid in ranks(log))
    mpi.check_all_gone()
    text = log.read_text()
    assert f"Open MPI v{'5' if mpi.name == 'pypi' else '4.1'}" in text
    assert text.count("Finished server process") == 1
    assert [line for line in said if "PRTE_ALLOW_RUN_AS_ROOT" in line] or os.geteuid() != 0
    warnings = [line for line in said if "warning" in line and "shows no GPU" not in line]
    assert not warnings + [line for line in said if "not passed on" in line]


@pytest.fixture
def alone(mpi: Mpi, tmp_path: Path) -> Any:
    """Return a function that runs a server without ranks until its log has a word.

    The function returns the reported cause and hint, and whether the server ended.
    """

    def run(word: str, tp: int, **changes: str | None) -> tuple[str, str, bool]:
        env = {**mpi.environ, **AS_ROOT, **changes}
        log = tmp_path / "server.log"
        words = ["serve", "org/model", "--port", str(free_port()), "--tp_size", str(tp)]
        with running(
            words, log, {name: value for name, value in env.items() if value is not None}
        ) as process:
            until(lambda: word in log.read_text(), about=log.read_text)
            found = cause(log.read_text())
            assert found is not None, log.read_text()
            return *found, process.poll() is not None

    return run


@pytest.mark.skipif(os.geteuid() != 0, reason="Open MPI refuses root only")
@ONLY_5
def test_root_needs_the_variables(alone: Any) -> None:
    """Open MPI 4 starts ranks for root like for other users."""
    without = dict.fromkeys(AS_ROOT)
    told, hint, ended = alone("(_manager_spawn)", 1, **without)
    assert told == "Open MPI starts no processes for root"
    assert all(f"{name}: '1'" in hint for name in without)
    assert not ended


@ONLY_4
def test_too_few_slots_are_named(alone: Any) -> None:
    """Open MPI 5 starts more ranks than there are slots."""
    told, hint, ended = alone("MPI_ERR_SPAWN", MORE)
    assert "fewer slots" in told
    assert f"{ENOUGH}: '1'" in hint
    assert not ended


@ONLY_5
def test_a_prte_that_is_not_found_is_named(alone: Any) -> None:
    told, _, ended = alone("MPI_ERR_UNKNOWN", 1, PATH=f"{STANDIN}:/usr/bin:/bin")
    assert "prte" in told
    assert not ended


def test_ranks_that_are_not_reached_are_named(mpi: Mpi, alone: Any) -> None:
    told, hint, _ = alone(
        "MPI_ERR_INTERN", 1, OMPI_MCA_btl="self,sm" if mpi.name == "pypi" else "self,vader"
    )
    assert "cannot reach each other" in told
    assert "OMPI_MCA_btl" in hint


@pytest.fixture
def plan(tmp_path: Path, data_root: Path) -> Path:
    content = {
        "model": "org/model",
        "launcher": {"name": "trtllm", "stop_timeout_s": 10, "ready_timeout_s": 60},
        "tasks": [{"gsm8k": {"max_tokens": 16}}],
        "dataset_root": str(data_root),
        "no_reference": True,
        "limit": 3,
    }
    (file := tmp_path / "plan.yaml").write_text(json.dumps(content))
    return file


def test_an_evaluation_inside_mpirun_has_a_server_of_its_own(
    mpi: Mpi, plan: Path, tmp_path: Path
) -> None:
    """Of two ranks of mpirun, one evaluates and the other waits for it.

    A server that considered itself a rank of theirs would wait for the other.
    """
    out = tmp_path / "out"
    tool = f"{sys.executable} -m serve_eval run {plan} -o {out}"
    rank = f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exec sleep 600; {tool}; kill $PPID'
    command = [
        *mpi.mpirun,
        "--oversubscribe",
        "-np",
        "2",
        "--mca",
        "btl_base_verbose",
        "0",
        "sh",
        "-c",
        rank,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=mpi.environ, capture_output=True, text=True, timeout=120
    )
    [task] = json.loads((out / "report.json").read_text())["tasks"]
    assert task["result"]["scored"] == 3, done.stderr
    assert [size for _, size, _ in ranks(out / "logs/trtllm.log")] == [1]
