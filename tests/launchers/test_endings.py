"""Test that no process, port, lock or temporary file of a server outlives the tool."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from serve_eval.errors import LaunchError
from serve_eval.launchers import trtllm_disaggregated
from serve_eval.launchers._machine import lock_files
from serve_eval.schema import LaunchContext
from tests.standin.process import environment

ROOT = Path(__file__).resolve().parents[2]
MARK = "STANDIN_TEST_RUN"
"""A variable of the tool and all its children; the stand-in receives variables with its prefix."""
LEFT_S = 20.0
GENERATION = {"when": {"gpus": "1"}}

PHASES = {
    "probing": ({}, {}, "probing"),
    "starting": ({"STANDIN_LOAD_S": "60"}, {}, "context_0: started"),
    "loading": ({"STANDIN_LOAD_S": "60"}, {}, "orchestrator: started"),
    "first completion": ({}, {"hang_after": 0, **GENERATION}, "orchestrator: ready"),
    "evaluating": ({}, {}, "the first completion took"),
    "tearing down": ({}, {"ignore_sigterm": True}, "the first completion took"),
}
"""Variables and faults that prolong a phase of the stand-in, and the message when it begins."""
CASES = [
    pytest.param(phase, how, id=f"{phase}, {how.name}", marks=pytest.mark.slow)
    for phase in PHASES
    for how in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
]


def marked(mark: str) -> list[str]:
    """Return the processes of a run by number and command line, without zombies."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(
                        folder.name + " " + (folder / "cmdline").read_text().replace("\0", " ")
                    )
    return found


def ports(logs: Path) -> list[int]:
    """Return the ports of the servers from the orchestrator's file."""
    content = yaml.safe_load((logs / "orchestrator.yaml").read_text())
    urls = content["context_servers"]["urls"] + content["generation_servers"]["urls"]
    return [content["port"], *(int(url.rpartition(":")[2]) for url in urls)]


def check_nothing_left(mark: str, run: Path, temporary: Path, locks: Path) -> None:
    deadline = time.monotonic() + LEFT_S
    while left := marked(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    if (run / "logs/orchestrator.yaml").exists():
        for port in ports(run / "logs"):
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)), f"a process listens at {port}"
    assert [path.name for path in temporary.iterdir()] == []
    names = [file.stem for file in locks.glob("*")] if locks.exists() else []
    with lock_files.lock_names(names):
        pass


@pytest.mark.parametrize(("phase", "how"), CASES)
def test_nothing_is_left(
    phase: str,
    how: signal.Signals,
    data_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables, faults, begins = PHASES[phase]
    (temporary := tmp_path / "tmp").mkdir()
    mark, probed = uuid.uuid4().hex, tmp_path / "probed"
    (program := tmp_path / "serve").write_text(
        f"#!/bin/sh\ntouch {probed}\nsleep 60 &\ntrap '' TERM\nwait\nwait\n"
    )
    program.chmod(0o755)
    launcher = {
        "name": "trtllm_disaggregated",
        "stop_timeout_s": 5 if phase == "tearing down" else 1,
    }
    launcher |= {"command": str(program)} if phase == "probing" else {}
    (plan := tmp_path / "plan.yaml").write_text(
        yaml.safe_dump(
            {
                "model": "org/model",
                "tasks": ["gsm8k"],
                "dataset_root": str(data_root),
                "no_reference": True,
                "limits": {"rate_limit": 2},
                "launcher": launcher,
            }
        )
    )
    env = (
        environment(faults=faults, STANDIN_POLL_S="0.1")
        | variables
        | {
            MARK: mark,
            "TMPDIR": str(temporary),
        }
    )
    env |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), lock_files.VARIABLE: str(tmp_path / "locks")}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    said = tmp_path / "said"
    with said.open("w") as stderr:
        run = subprocess.Popen(
            [sys.executable, "-m", "serve_eval", "run", str(plan), "-o", str(tmp_path / "run")],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        _wait(
            lambda: probed.exists() if phase == "probing" else begins in said.read_text(), run, said
        )
        if phase in ("evaluating", "tearing down"):
            _wait(
                lambda: any((tmp_path / "run/samples").glob("*")) and _answered(tmp_path / "run"),
                run,
                said,
            )
        if phase == "tearing down":
            run.send_signal(signal.SIGTERM)
            _wait(
                lambda: "Shutting down" in (tmp_path / "run/logs/generation_0.log").read_text(),
                run,
                said,
            )
    finally:
        run.send_signal(how)
    code = run.wait(timeout=LEFT_S)
    assert code == (-signal.SIGKILL if how is signal.SIGKILL else 130), said.read_text()
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path / "locks"))
    check_nothing_left(mark, tmp_path / "run", temporary, tmp_path / "locks")


def _answered(run: Path) -> bool:
    return (run / "samples/gsm8k.jsonl").stat().st_size > 0


def _wait(until: Callable[[], bool], run: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert run.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.02)


@pytest.mark.slow
def test_twenty_starts_and_stops_leak_nothing(
    context: LaunchContext,
    standin: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    standin()

    async def once() -> None:
        async with trtllm_disaggregated.launch(
            context, trtllm_disaggregated.DisaggregatedOptions()
        ):
            assert len(marked(mark)) >= 6  # three servers, each with its supervisor

    def state() -> tuple[int, list[int], list[str]]:
        threads = [len(list(Path("/proc/self/task").iterdir()))]
        files = len(list(Path("/proc/self/fd").iterdir()))
        return files, threads, [path.name for path in temporary.iterdir()]

    asyncio.run(once())  # late imports open files of their own
    before = state()
    for _ in range(20):
        asyncio.run(once())
        assert not [line for line in marked(mark) if not line.startswith(f"{os.getpid()} ")]
    assert state() == before
    check_nothing_left(mark, context.log_dir.parent, temporary, tmp_path / "locks")
    with (
        pytest.raises(LaunchError, match="is used by another launch"),
        lock_files.lock_names(["GPU-0"]),
        lock_files.lock_names(["GPU-0"]),
    ):
        pass
