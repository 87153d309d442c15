"""Test that nothing of a launch is left, even after signals or lost parents.

The exit code is 130 both times.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from serve_eval.errors import LaunchError
from serve_eval.launchers._fleet import fleet
from serve_eval.launchers._process import environment
from serve_eval.launchers._process.server_process import supervise
from serve_eval.launchers._process.supervisor import descendants
from serve_eval.launchers._trtllm.command_line import Place, Server
from tests.launchers.conftest import gone
from tests.launchers.test_server_processes import LEFT_S, MARK, ROOT, marked
from tests.standin.deployments import environment as second_signal_environment

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="servers are launched on Linux only"
)

AWAY = (
    "import os, pathlib, subprocess, sys, time\naway = subprocess.Popen([sys.executable, '-c',"
    " 'import time; time.sleep(60)'], start_new_session=True)\npart = pathlib.Path(sys.argv[1] +"
    " '.part'); part.write_text(str(away.pid)); part.rename(sys.argv[1])\ntime.sleep(60)\n"
)
"""A server with a process in its own session, which no signal to the server's group reaches."""


async def _launched(folder, told, *, kill_supervisor):
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
async def test_a_process_that_left_the_group_of_its_server_is_killed(tmp_path, kill_supervisor):
    told = []
    away = await _launched(tmp_path, told, kill_supervisor=kill_supervisor)
    assert gone(away)
    assert not [line for line in told if "warning" in line]


async def test_what_stays_all_the_same_is_told(monkeypatch):
    nobody = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1  # a number that no process has
    monkeypatch.setattr(fleet, "_find_marked", lambda mark: [nobody])
    monkeypatch.setattr(fleet, "LEFT_S", 0.0)
    told = []
    await fleet._check_gone("a mark", told.append)
    assert told == [f"warning: processes of the servers still run: {nobody}"]


def test_processes_are_known_by_the_whole_mark():
    assert fleet._find_marked("nobody has this mark") == []
    assert os.getpid() not in fleet._find_marked("")


async def test_servers_that_find_a_port_themselves_lock_none(tmp_path, monkeypatch):
    """Two launches may wait for their ports at the same time."""
    monkeypatch.setenv("SERVE_EVAL_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr(fleet.local_gpus, "memory_used", lambda: None)
    sleeping = ("sleep", "60")
    one = Server(name="one", argv=sleeping, probe=sleeping, place=Place(host="127.0.0.1", port=0))
    async with (
        fleet.fleet([one], log_dir=tmp_path / "a", notify=str, stop_timeout_s=2.0) as first,
        fleet.fleet([one], log_dir=tmp_path / "b", notify=str, stop_timeout_s=2.0) as second,
    ):
        assert (len(first) + len(second)) == 2


def test_processes_that_hide_the_mark_end_with_those_that_have_it():
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


PATIENT_S = 120.0
"""The grace period of the servers, longer than a test may take."""
DEAF = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True);"
    " time.sleep(600)"
)
WAITS = "waiting up to 120 s for the end of {}; Ctrl-C kills what is left now"
PLAN = {
    "model": "org/model",
    "tasks": ["gsm8k"],
    "no_reference": True,
    "limits": {"rate_limit": 2},
}


def _until(true, what):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_supervisor_that_was_asked_ends_at_once_when_its_launcher_is_gone(asked_first, tmp_path):
    """A launcher that is killed before it asked leaves the servers their grace period."""
    log = tmp_path / "log"
    with log.open("wb") as out:
        supervisor = subprocess.Popen(
            supervise([sys.executable, "-c", DEAF], grace_s=PATIENT_S),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
        )
    try:
        _until(lambda: "up" in log.read_text(), "the server starts")
        if asked_first:
            supervisor.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                supervisor.wait(0.3)  # its grace
        supervisor.stdin.close()
        if asked_first:
            assert supervisor.wait(LEFT_S) == 128 + signal.SIGKILL
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                supervisor.wait(0.3)
    finally:
        for _ in range(2):
            supervisor.send_signal(signal.SIGTERM)
            time.sleep(0.05)
        supervisor.wait(LEFT_S)


def _command(what, launcher, folder, data):
    options = {"name": launcher, "gpus": [0, 1], "stop_timeout_s": PATIENT_S}
    plan = {**PLAN, "launcher": options, "dataset_root": str(data)}
    if what == "serve":
        (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
        return ["serve", "plan.yaml", "-o", "out"]
    if what == "run":
        (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
        return ["run", "plan.yaml", "-o", "out"]
    (folder / "suite.yaml").write_text(
        yaml.safe_dump({"name": "s", "plans": [{**plan, "name": "one"}]})
    )
    return ["run", "suite.yaml", "-o", "out"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("what", "launcher"),
    [("run", "trtllm"), ("serve", "trtllm"), ("run", "trtllm_disaggregated")],
)
def test_a_second_signal_while_servers_end(what, launcher, number, data_root, tmp_path):
    mark = uuid.uuid4().hex
    names = ["trtllm"] if launcher == "trtllm" else ["context_0", "generation_0", "orchestrator"]
    env = second_signal_environment(
        "v12" if launcher == "trtllm" else "main", faults={"ignore_sigterm": True}
    )
    env |= {
        MARK: mark,
        "TMPDIR": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    env |= {"XDG_RUNTIME_DIR": str(tmp_path)}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    said = tmp_path / "said"

    def asked_to_end():
        logs = [
            path.read_text() for path in (tmp_path / "out").rglob("*.log") if path.stem in names
        ]
        return len(logs) == len(names) and all("Shutting down" in log for log in logs)

    with said.open("wb") as out:
        tool = subprocess.Popen(
            [sys.executable, "-m", "serve_eval", *_command(what, launcher, tmp_path, data_root)],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        _until(lambda: "base URL" in said.read_text() or _asks(tmp_path), said.read_text())
        os.killpg(tool.pid, number)  # as a terminal does
        _until(asked_to_end, "the servers are asked to end")
        if (what, number) == ("run", signal.SIGINT):
            _until(
                lambda: WAITS.format(", ".join(names)) in said.read_text(),
                "the messages name the servers that the tool waits for",
            )
        assert tool.poll() is None
        os.killpg(tool.pid, number)
        assert tool.wait(LEFT_S) == 130, said.read_text()
        _until(lambda: not marked(mark), "something is left")
    finally:
        if tool.poll() is None:
            tool.kill()
            tool.wait()
    assert said.read_text().count("Traceback") == 0
    assert gone(tool.pid)


def _asks(folder):
    return any(path.stat().st_size for path in (folder / "out").rglob("gsm8k.jsonl"))
