"""Test the scripts around a wrapper of ranks, with short wrappers and without SLURM.

The requirements are in rank_tasks; `make test-slurm` runs the scripts as tasks of a real SLURM.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from serve_eval.launchers._slurm.srun import (
    HELD,
    HOLDER,
    PORTS_EACH,
    SCRIPT,
    count_held_ports,
    files,
)

# The leader is a sleep. After the server has failed, the older wrapper stays and the newer one
# stops the leader.
OLDER = (
    'set -e\ncommand=$*\necho "$TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR" > at\n($command) &\nsleep 60\n'
)
NEWER = (
    'echo "$TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR" > at\n("$@"; code=$?; touch stop; exit $code)'
    " &\nwait $!\nexit $?\n"
)
LEADERLESS = "(eval $*) &\nexit 9\n"
WORKER = "touch started\nsleep 60\n"


@pytest.fixture(params=[OLDER, NEWER], ids=["older", "newer"])
def wrapper(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return wrapping(tmp_path, request.param)


def wrapping(folder: Path, text: str) -> str:
    for path, script in files(1, folder).items():
        path.write_text(script)
    file = folder / "wrapper"
    file.write_text(f"#!/bin/bash\n{text}")
    file.chmod(0o755)
    return str(file)


class Task:
    """ranks.sh in its own session, like a task."""

    def __init__(self, wrapper: str, *server: str, rank: int = 0) -> None:
        self.folder = Path(wrapper).parent
        self.process = subprocess.Popen(
            ["bash", str(self.folder / SCRIPT), wrapper, *server],
            cwd=self.folder,
            env={**os.environ, "SLURM_PROCID": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def members(self) -> list[int]:
        """Return the processes of its session, without zombies."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                words = stat.read_text().rpartition(")")[2].split()
                if int(words[3]) == self.process.pid and words[0] != "Z":
                    found.append(int(stat.parent.name))
        return found

    def children(self) -> list[int]:
        pid = self.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def terminate(self) -> None:
        """Send SIGTERM to every process, as scancel --signal=TERM does."""
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def until(self, name: str) -> None:
        deadline = time.monotonic() + 20
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def ended(self) -> tuple[int, str]:
        try:
            out, _ = self.process.communicate(timeout=20)
            deadline = time.monotonic() + 10
            while self.members():  # the processes that were killed last may need a moment
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            for pid in self.members():
                os.kill(pid, signal.SIGKILL)
        return self.process.returncode, out


def test_it_ends_with_the_exit_code_of_its_server(wrapper: str) -> None:
    assert Task(wrapper, "bash", "-c", "echo 'a  \"b'; exit 5").ended() == (5, 'a  "b\n')
    folder = Path((Path(wrapper).parent / "at").read_text().strip().removeprefix("ipc://")).parent
    assert folder.name.startswith("serve-eval-ranks-")
    assert not folder.exists()


@pytest.mark.slow
def test_it_waits_for_a_server_that_was_asked_to_end(wrapper: str) -> None:
    """Its wrapper is gone by then. A stop request to all is not a failure of any."""
    task = Task(
        wrapper,
        "bash",
        "-c",
        "trap 'sleep 1; echo over; exit 3' TERM; touch up; while :; do sleep 0.1; done",
    )
    task.until("up")
    task.terminate()
    code, out = task.ended()
    assert code == 0
    assert "over" in out


def test_a_server_does_not_outlive_its_leader(tmp_path: Path) -> None:
    assert Task(wrapping(tmp_path, LEADERLESS), "sleep", "60").ended()[0] == 9


def test_a_wrapper_that_is_not_there_ends_it(tmp_path: Path) -> None:
    wrapping(tmp_path, "")
    assert Task(str(tmp_path / "nothing"), "true").ended()[0] == 127


def test_another_rank_is_asked_to_end(tmp_path: Path) -> None:
    task = Task(wrapping(tmp_path, WORKER), "server", rank=1)
    task.until("started")
    task.terminate()
    assert task.ended()[0] == 0


def test_another_rank_may_be_asked_after_its_wrapper(tmp_path: Path) -> None:
    task = Task(wrapping(tmp_path, WORKER), "server", rank=1)
    task.until("started")
    (wrapper_pid,) = task.children()
    os.kill(wrapper_pid, signal.SIGTERM)
    while task.children() in ([], [wrapper_pid]):
        assert task.process.poll() is None
        time.sleep(0.02)
    os.kill(task.process.pid, signal.SIGTERM)
    assert task.ended()[0] == 0


def test_another_rank_that_is_killed_fails(tmp_path: Path) -> None:
    task = Task(wrapping(tmp_path, WORKER), "server", rank=1)
    task.until("started")
    (wrapper_pid,) = task.children()
    os.kill(wrapper_pid, signal.SIGKILL)
    code, out = task.ended()
    assert code == 137, out


# Held ports

SEARCH = """
import socket
port = 10012
while True:
    one = socket.socket()
    try:
        one.bind(("", port))
        break
    except OSError:
        port += 1
print(port)
"""
"""The search of older wrappers."""


def test_ports_are_held_that_others_found_before(tmp_path: Path) -> None:
    """Ports are held even if others hold them as well."""
    (tmp_path / HOLDER).write_text(HELD)
    words = [sys.executable, str(tmp_path / HOLDER), str(PORTS_EACH)]
    holds = "import sys; print(flush=True); sys.stdin.read()"
    late = (
        "import socket; one = socket.create_server(('127.0.0.1', 10012 + 3));"
        " print(one.getsockname()[1])"
    )
    with subprocess.Popen(
        [*words, *words, sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        with subprocess.Popen(
            [*words, sys.executable, "-c", f"{holds}\n{SEARCH}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as one:
            assert one.stdout is not None
            one.stdout.readline()
            other.stdin.close()
            other.wait(20)
            bound = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True)
            assert bound.stdout == "10015\n", bound.stderr
            found, _ = one.communicate(timeout=20)
    assert int(found) >= 10012 + PORTS_EACH
    assert int(
        subprocess.run([sys.executable, "-c", SEARCH], capture_output=True, text=True).stdout
    ) < int(found)


def test_each_wrapped_server_of_a_node_has_ports_of_its_own() -> None:
    assert [*count_held_ports([0, 0, 1, 0, 0], [True, True, True, True, False])] == [
        0,
        16,
        0,
        32,
        48,
    ]
    assert [*count_held_ports([0, 0], [False, False])] == [0, 0]
