"""A script in a limited process: whatever ends it, the caller gets its output and the reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from serve_eval.processes.child_process import LimitedEnd, run_limited

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
