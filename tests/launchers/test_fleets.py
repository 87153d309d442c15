"""Run a plan whose servers and orchestrator are each several processes, through the command line.

All are processes of the stand-in: the coordinator of the orchestrator and its two, and workers
that count as two front ends.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from serve_eval.launchers._machine import lock_files
from tests.launchers.test_endings import LEFT_S, MARK, ROOT, check_nothing_left, marked
from tests.launchers.test_front_ends import read_processes
from tests.standin.process import environment

pytestmark = pytest.mark.slow
NAMES = ["context_0", "context_1", "generation_0", "orchestrator"]
REQUESTS = 40
START_S = 120.0
"""Six interpreters start, on a machine that others may use."""
NOTHING_JUDGED = 3


class Fleet(NamedTuple):
    """A run of a fleet: its process, its folder, what it said, and the mark of its processes."""

    process: subprocess.Popen[bytes]
    folder: Path
    said: Path
    mark: str

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + START_S
        while words not in self.said.read_text():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.05)


@contextmanager
def fleet(place: Path, data_root: Path, *, per_second: float | None = None) -> Iterator[Fleet]:
    """Start `serve-eval run` with a plan of a fleet; end it at the end."""
    side = {"config": {"num_serve_frontends": 2}}
    plan: dict[str, Any] = {
        "model": "org/model",
        "tasks": [{"name": "gsm8k", "num_samples": REQUESTS}],
        "dataset_root": str(data_root),
        "no_reference": True,
        "launcher": {
            "name": "trtllm_disaggregated",
            "gpus": [0, 1, 2],
            "perf_metrics": True,
            "context_servers": {"num_instances": 2, **side},
            "generation_servers": side,
            "orchestrator": {"num_workers": 2},
        },
    }
    if per_second is not None:
        plan["limits"] = {"rate_limit": per_second}
    (place / "tmp").mkdir()
    (place / "plan.yaml").write_bytes(msgspec.json.encode(plan))
    mark, said = uuid.uuid4().hex, place / "said"
    env = environment("main", STANDIN_POLL_S="0.1", TMPDIR=str(place / "tmp"))
    env |= {MARK: mark, lock_files.VARIABLE: str(place / "locks")}
    env |= {"XDG_CACHE_HOME": str(place / "cache"), "SERVE_EVAL_NO_PICTURES": "1"}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    with said.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "serve_eval", "run", "plan.yaml", "-o", str(place / "run")],
            cwd=place,
            env={**env, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        yield Fleet(process, place / "run", said, mark)
    finally:
        process.kill()
        process.wait()


def test_a_run_with_a_fleet_starts_counts_and_ends_all(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet(tmp_path, data_root) as run:
        assert run.process.wait(START_S) == NOTHING_JUDGED, run.said.read_text()
    report = msgspec.json.decode((run.folder / "report.json").read_bytes())
    info = report["endpoint"]["info"]
    assert sorted(info["servers"]) == NAMES
    assert info["front_ends"] == dict.fromkeys(NAMES, 2)
    [task] = report["tasks"]
    assert (task["result"]["scored"], task["result"]["failed"]) == (REQUESTS, 0)
    assert task["attribution"]["joined"] == REQUESTS
    answered = {one["worker"]: one["answers"] for one in task["attribution"]["rows"]}
    addresses = [info["servers"][name].partition("://")[2] for name in NAMES[:2]]
    assert sorted(answered) == sorted(addresses)
    assert sum(answered.values()) == REQUESTS
    states = {one["claim"]: one["state"] for one in report["path"]}
    assert states["kv_transfer"] == "proven"
    assert not [line for line in report["warnings"] if "other clients" in line]
    processes = read_processes(run.folder / "logs/orchestrator.log", 3)
    assert len(set(processes)) == 3
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path / "locks"))
    check_nothing_left(run.mark, run.folder, tmp_path / "tmp", tmp_path / "locks")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=lambda one: one.name)
def test_a_fleet_whose_run_is_stopped_leaves_nothing(
    how: signal.Signals, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fleet(tmp_path, data_root, per_second=2) as run:
        run.wait_for("the first completion took")
        # Four servers with a supervisor each, two more processes, and the command.
        assert len(marked(run.mark)) >= 11
        run.process.send_signal(how)
        code = run.process.wait(LEFT_S)
    assert code == (-signal.SIGKILL if how is signal.SIGKILL else 130), run.said.read_text()
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path / "locks"))
    check_nothing_left(run.mark, run.folder, tmp_path / "tmp", tmp_path / "locks")
