"""Test limited processes, their descriptors, and the load of cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve_eval.processes import resources
from serve_eval.processes.child_process import LimitedEnd, run_limited
from serve_eval.processes.resources import CoreLoad

MIB = 2**20


def _run(folder: Path, code: str, given: bytes = b"", *, limit_s: float = 60.0) -> LimitedEnd:
    script = folder / "script.py"
    script.write_text(f"import os, signal, sys\n{code}\n")
    return run_limited(script, given, limit_s=limit_s, memory_bytes=256 * MIB)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", ""),
        ("sys.exit(3)", "it ended with the status 3"),
        ("raise ValueError('x')", "it ended with the status 1"),
        ("os.kill(os.getpid(), signal.SIGTRAP)", "it was ended by SIGTRAP"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "it was ended by SIGKILL"),
        ("os.kill(os.getpid(), 40)", "it was ended by the signal 40"),
        ("bytearray(2**30)", "it ended with the status 1"),
    ],
)
def test_what_was_written_before_the_end_is_kept(code: str, why: str, tmp_path: Path) -> None:
    ended = _run(tmp_path, f"os.write(1, b'before')\n{code}", b"x" * MIB)
    assert ended == LimitedEnd(b"before", why)


def test_time_and_processor_time_are_limited(tmp_path: Path) -> None:
    slept = _run(tmp_path, "os.write(1, b'a'); import time; time.sleep(600)", limit_s=2.0)
    assert slept == LimitedEnd(b"a", "it took longer than 2 s")
    spun = _run(tmp_path, "signal.setitimer\nwhile True: pass", limit_s=1.0)
    assert spun.why in ("it took longer than 1 s", "it was ended by SIGXCPU")


def test_it_sees_no_code_of_the_current_folder_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "random", "resource", "runpy"):
        (here / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(here)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code = (
        "import json, random, resource\n"
        "core = resource.getrlimit(resource.RLIMIT_CORE)[0]\n"
        "print(json.dumps([os.getcwd(), sys.path, dict(os.environ), core]))"
    )
    ended = _run(tmp_path, code)
    assert ended.why == ""
    folder, places, environ, core = json.loads(ended.written)
    assert (folder, core) == ("/", 0)
    assert str(here) not in places
    assert "" not in places
    assert "OPENAI_API_KEY" not in environ
    assert environ["PATH"] == os.environ["PATH"]


def test_a_script_that_is_not_there_is_a_reason(tmp_path: Path) -> None:
    ended = run_limited(tmp_path / "none.py", b"", limit_s=60.0, memory_bytes=256 * MIB)
    assert ended == LimitedEnd(b"", "it ended with the status 1")


CODE = """
import resource
from serve_eval.processes.resources import (ensure_descriptors)
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
ensure_descriptors({wanted})
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "said"),
    [
        (256, 4096, 64, "256"),
        (256, 4096, 1000, "1100"),
        (
            256,
            1024,
            1000,
            "1000 requests in flight need 1100 open files, but this process may only have 1024",
        ),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may(
    soft: int, hard: int, wanted: int, said: str
) -> None:
    code = CODE.format(soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STAT", "QUOTA", "USAGE"):
        monkeypatch.setattr(resources, name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("later", "share"),
    [
        ("cpu 180 0 10 110 0 0 0 0 50 0", 0.9),
        ("cpu 100 0 0 200 0 0 0 0 0 0", 0.0),
        ("cpu 100 0 0 150 50 0 0 0 0 0", 0.0),  # waiting for a disk is idle
        ("cpu 100 0 0 100 0 40 40 20 0 0", 1.0),  # interrupts and time taken by others are busy
        ("cpu 100 0 0 100 0 0 0 0 0 0", None),
        ("nothing", None),
    ],
)
def test_cores_are_busy_where_they_are_not_idle(
    kernel: Path, later: str, share: float | None
) -> None:
    (kernel / "STAT").write_text("cpu 100 0 0 100 0 0 0 0 0 0\ncpu0 1 1\n")
    load = CoreLoad()
    (kernel / "STAT").write_text(f"{later}\ncpu0 1 1\n")
    assert load.share() == pytest.approx(share)


def test_a_quota_of_a_container_counts_if_more_of_it_is_used(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(resources.time, "monotonic", lambda: clock[0])
    (kernel / "STAT").write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    (kernel / "USAGE").write_text("usage_usec 1000000\nuser_usec 1\n")
    (kernel / "QUOTA").write_text("200000 100000\n")
    load = CoreLoad()
    clock[0] += 10.0
    (kernel / "STAT").write_text("cpu 10 0 0 990 0 0 0 0 0 0\n")
    (kernel / "USAGE").write_text("usage_usec 20000000\nuser_usec 1\n")
    assert load.share() == pytest.approx(0.95)
    (kernel / "QUOTA").write_text("max 100000\n")
    assert load.share() == pytest.approx(0.01)


def test_a_machine_without_these_files_tells_nothing(kernel: Path) -> None:
    assert CoreLoad().share() is None
