"""Test that nothing of a launch is left, even if a process left its group or parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers._fleet import fleet
from serve_eval.launchers._process import environment
from serve_eval.launchers._process.supervisor import descendants
from serve_eval.launchers._trtllm.command_line import Place, Server
from tests.launchers.processes import gone

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="servers are launched on Linux only"
)

AWAY = (
    "import os, pathlib, subprocess, sys, time\naway = subprocess.Popen([sys.executable, '-c',"
    " 'import time; time.sleep(60)'], start_new_session=True)\npart = pathlib.Path(sys.argv[1] +"
    " '.part'); part.write_text(str(away.pid)); part.rename(sys.argv[1])\ntime.sleep(60)\n"
)
"""A server with a process in its own session, which no signal to the server's group reaches."""


async def _launched(folder: Path, told: list[str], *, kill_supervisor: bool) -> int:
    """Return the number of the process that got away, after the launch has ended."""
    note = folder / "pid"
    python = (sys.executable, "-c", AWAY, str(note))
    server = Server(
        name="one", argv=python, probe=python, place=Place(host="127.0.0.1", port=0), here=False
    )
    with suppress(LaunchError):
        async with fleet.fleet(
            [server], log_dir=folder / "logs", notify=told.append, stop_timeout_s=2.0
        ) as running:
            deadline = time.monotonic() + 30
            while not note.exists():
                assert time.monotonic() < deadline, "the server did not start"
                await asyncio.sleep(0.02)
            assert not gone(int(note.read_text()))
            if kill_supervisor:
                os.kill(running[0].process.pid, signal.SIGKILL)
                await asyncio.sleep(30)  # until the launch notices
    return int(note.read_text())


@pytest.mark.parametrize("kill_supervisor", [False, True])
def test_a_process_that_left_the_group_of_its_server_is_killed(
    tmp_path: Path, kill_supervisor: bool
) -> None:
    told: list[str] = []
    away = asyncio.run(_launched(tmp_path, told, kill_supervisor=kill_supervisor))
    assert gone(away)
    assert not [line for line in told if "warning" in line]


def test_what_stays_all_the_same_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1  # a number that no process has
    monkeypatch.setattr(fleet, "_find_marked", lambda mark: [nobody])
    monkeypatch.setattr(fleet, "LEFT_S", 0.0)
    told: list[str] = []
    asyncio.run(fleet._check_gone("a mark", told.append))
    assert told == [f"warning: processes of the servers still run: {nobody}"]


def test_processes_are_known_by_the_whole_mark() -> None:
    assert fleet._find_marked("nobody has this mark") == []
    assert os.getpid() not in fleet._find_marked("")


def test_servers_that_find_a_port_themselves_lock_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two launches may wait for their ports at the same time."""
    monkeypatch.setenv("SERVE_EVAL_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(fleet.local_gpus, "memory_used", lambda: None)
    sleeping = ("sleep", "60")
    one = Server(name="one", argv=sleeping, probe=sleeping, place=Place(host="127.0.0.1", port=0))

    async def both() -> int:
        async with (
            fleet.fleet([one], log_dir=tmp_path / "a", notify=str, stop_timeout_s=2.0) as first,
            fleet.fleet([one], log_dir=tmp_path / "b", notify=str, stop_timeout_s=2.0) as second,
        ):
            return len(first) + len(second)

    assert asyncio.run(both()) == 2


def test_processes_that_hide_the_mark_end_with_those_that_have_it() -> None:
    """vLLM's engines overwrite their environment, and outlive their parent."""
    hidden = ["env", "-i", "sleep", "600"]
    script = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True).wait()"
    env = {**os.environ, environment.MARK: "hidden"}
    with subprocess.Popen([sys.executable, "-c", script, *hidden], env=env) as parent:
        deadline = time.monotonic() + 20
        while not (below := descendants(parent.pid)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert fleet._find_marked("hidden") == sorted([parent.pid, *below])
        ending = threading.Thread(target=parent.wait)  # or it stays as a zombie
        ending.start()
        asyncio.run(fleet._check_gone("hidden", lambda line: None))
        ending.join()
    assert all(map(gone, below))
