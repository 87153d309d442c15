"""Test that a first Ctrl-C ends servers in order, and a second one immediately.

The exit code is 130 both times.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from serve_eval.launchers._process.server_process import supervise
from tests.launchers.processes import gone
from tests.launchers.test_endings import LEFT_S, MARK, ROOT, marked
from tests.standin.process import environment

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="servers are launched on Linux only"
)

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


def _until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_supervisor_that_was_asked_ends_at_once_when_its_launcher_is_gone(
    asked_first: bool, tmp_path: Path
) -> None:
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
        assert supervisor.stdin is not None
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


def _command(what: str, launcher: str, folder: Path, data: Path) -> list[str]:
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
def test_a_second_signal_while_servers_end(
    what: str, launcher: str, number: signal.Signals, data_root: Path, tmp_path: Path
) -> None:
    mark = uuid.uuid4().hex
    names = ["trtllm"] if launcher == "trtllm" else ["context_0", "generation_0", "orchestrator"]
    env = environment("v12" if launcher == "trtllm" else "main", faults={"ignore_sigterm": True})
    env |= {
        MARK: mark,
        "TMPDIR": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    env |= {"XDG_RUNTIME_DIR": str(tmp_path)}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    said = tmp_path / "said"

    def asked_to_end() -> bool:
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


def _asks(folder: Path) -> bool:
    return any(path.stat().st_size for path in (folder / "out").rglob("gsm8k.jsonl"))
