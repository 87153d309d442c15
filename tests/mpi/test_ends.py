"""Test every end of a server with MPI ranks: no rank stays, nor a daemon of MPI.

The daemon leaves the process group.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_eval.errors import LaunchError
from serve_eval.launchers import trtllm
from serve_eval.schema import LaunchContext
from tests.mpi.conftest import ROOT, WAIT_S, Mpi, ranks, until

pytestmark = [pytest.mark.slow, pytest.mark.mpi]

WHO = {
    "server": "serve_eval.launchers._standin",
    "supervisor": "_process/supervisor.py",
    "rank": "mpi4py.futures.server",
}
DAEMONS = {"pypi": "prte", "debian": "orted"}


def daemons(mpi: Mpi) -> list[int]:
    return [
        pid
        for pid in mpi.processes(DAEMONS[mpi.name])
        if Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0].endswith(DAEMONS[mpi.name])
    ]


@pytest.mark.parametrize("who", ["server", "supervisor"])
@pytest.mark.parametrize("stopped", [False, True], ids=["", "MPI's daemon hangs"])
def test_a_killed_server_leaves_no_rank(
    mpi: Mpi, who: str, stopped: bool, context: LaunchContext
) -> None:
    """MPI's own daemon ends ranks whose server is gone, unless the daemon hangs."""

    async def story() -> None:
        async with trtllm.launch(
            context, trtllm.TrtllmOptions(ready_timeout_s=WAIT_S, stop_timeout_s=2.0)
        ):
            assert len(ranks(context.log_dir / "trtllm.log")) == 1
            [daemon] = daemons(mpi)
            if stopped:
                os.kill(daemon, signal.SIGSTOP)
            [pid] = mpi.processes(WHO[who])[:1]
            os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(WAIT_S)

    with pytest.raises(LaunchError, match="trtllm ended with signal 9"):
        asyncio.run(story())
    mpi.check_all_gone()


@pytest.fixture
def evaluation(mpi: Mpi, tmp_path: Path, data_root: Path) -> Any:
    """Start an evaluation in its own process, and wait until it is under way."""
    content = {
        "model": "org/model",
        "launcher": {"name": "trtllm", "stop_timeout_s": 2, "ready_timeout_s": WAIT_S},
        "tasks": ["gsm8k"],
        "dataset_root": str(data_root),
        "no_reference": True,
        "limits": {"rate_limit": 2},
    }
    (file := tmp_path / "plan.yaml").write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "serve_eval", "run", str(file), "-o", str(tmp_path / "out")]
    said = tmp_path / "said"
    with said.open("w") as stderr:
        run = subprocess.Popen(
            command, cwd=ROOT, env=mpi.environ, stdout=stderr, stderr=stderr, start_new_session=True
        )
    until(lambda: "the first completion took" in said.read_text(), about=said.read_text)
    assert len(mpi.processes(WHO["rank"])) == 1
    yield run
    if run.poll() is None:
        run.kill()
    run.wait(10)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("stopped", [False, True], ids=["", "MPI's daemon hangs"])
def test_a_tool_that_ends_leaves_no_rank(
    mpi: Mpi, how: signal.Signals, stopped: bool, evaluation: Any
) -> None:
    if stopped:
        [daemon] = daemons(mpi)
        os.kill(daemon, signal.SIGSTOP)
    evaluation.send_signal(how)
    evaluation.wait(60)
    mpi.check_all_gone()


def test_a_tool_that_is_killed_with_its_server_leaves_no_rank(mpi: Mpi, evaluation: Any) -> None:
    """Only the supervisor can find a hung daemon of MPI then: it inherits the server's children."""
    [daemon], [server] = daemons(mpi), mpi.processes("-P\0-m\0serve_eval.launchers._standin")
    os.kill(daemon, signal.SIGSTOP)
    evaluation.kill()
    os.kill(server, signal.SIGKILL)
    evaluation.wait(60)
    mpi.check_all_gone()
