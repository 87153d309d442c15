"""A night that died is told by the overview, with its cause and the command that goes on."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from serve_eval.report.document import Document, name_state
from serve_eval.report.page.content import TextLines
from serve_eval.workflows.view.document import make_document
from serve_eval.workflows.view.overview import read_folder
from tests.cli.command import environment, serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

ASKED = ("-m", "org/m", "--tasks", "word_problems", "--limit", "5")


@pytest.fixture
def nobody() -> str:
    """Return an address where nothing listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{closed.getsockname()[1]}"


def _begun(folder: Path, plan: str, summary: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / plan).write_text("{}")
    if summary:
        (folder / "summary.md").write_text(f"{summary}\n\n### more\n")
    return folder


def _view(folder: Path) -> Document:
    return make_document(read_folder(folder))


@pytest.mark.parametrize("command", ["compare", "verify", "check load", "run"])
def test_a_command_that_died_is_told_with_its_own_remedy(
    command: str, nobody: str, tmp_path: Path
) -> None:
    out = tmp_path / "nights" / command.split()[-1]
    asked: dict[str, tuple[str, ...]] = {
        "compare": (nobody, "127.0.0.1:1", *ASKED),
        "verify": (nobody, "127.0.0.1:1", "-m", "org/m"),
        "check load": (nobody, *ASKED),
        "run": ("--base-url", nobody, "--no-reference", *ASKED),
    }
    done = serve_eval(*command.split(), *asked[command], "-o", out)
    assert done.returncode == 4, done.stderr
    said = serve_eval("runs", "view", tmp_path / "nights", "-o", tmp_path / "v.html")
    lines = said.stdout.splitlines()
    assert "1 ended without a result; no drift alarm" in lines[0]
    assert " ".join(lines[2].split()).startswith(f"ERROR {command} ")
    [row] = [line for line in lines if line.startswith(" why")]
    assert "nothing listens on that port" in row
    way = f"run --resume {out}" if command == "run" else f"{command} with -o {out}"
    assert row.endswith(f"serve-eval {way}")
    # Only what can be run as it stands is a command.
    nexts = [line.split() for line in lines if line.startswith(" next")]
    assert nexts == ([["next", "serve-eval", "run", "--resume", str(out)]] * (command == "run"))


@pytest.mark.parametrize(
    ("plan", "command"),
    [
        ("plan.json", "run"),
        ("compare.json", "compare"),
        ("suite.json", "suite"),
        ("load_plan.json", "load"),
        ("tools_plan.json", "tools"),
        ("invariants_plan.json", "invariants"),
        ("verify_plan.json", "verify"),
    ],
)
def test_a_killed_command_and_an_interrupted_one_are_told_apart(
    plan: str, command: str, tmp_path: Path
) -> None:
    _begun(tmp_path / "1", plan)
    _begun(tmp_path / "2", plan, f"INTERRUPTED {command} h:1 a\\_b: no result; by a signal; /x")
    _begun(tmp_path / "3", plan, f"PASS {command}: 80; /x")  # the line of an earlier session
    document = _view(tmp_path)
    assert document.verdict == "KILLED"
    assert name_state(document.verdict) == "fail"
    assert "3 ended without a result; no drift alarm" in document.counted
    assert [(one.outcome, one.name) for one in document.conclusions] == [
        ("KILLED", command),
        ("KILLED", command),
        ("INTERRUPTED", f"{command} h:1 a_b"),
    ]


def test_sides_belong_to_their_comparison_and_old_nights_are_no_failure(tmp_path: Path) -> None:
    old = _begun(tmp_path / "old", "compare.json")
    _begun(old / "a", "plan.json")
    _begun(old / "b", "plan.json")
    long_ago = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
    os.utime(old / "compare.json", (long_ago, long_ago))
    _begun(tmp_path / "new", "tools_plan.json", "INTERRUPTED tools h:1: no result")
    document = _view(tmp_path)
    assert [one.outcome for one in document.conclusions] == ["INTERRUPTED"]
    [old] = document.statements
    assert old.text.startswith("compare: KILLED: ended without a result, 2020-01-01")


def test_a_command_that_still_runs_has_not_ended(tmp_path: Path) -> None:
    _begun(tmp_path / "dead", "plan.json")
    running = _begun(tmp_path / "running", "plan.json")
    with (running / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        document = _view(tmp_path)
    assert "1 ended without a result" in document.counted


def test_a_verify_that_still_runs_has_not_ended(tmp_path: Path) -> None:
    out = tmp_path / "nights" / "verify"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It accepts and never answers.
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ("verify", at, "127.0.0.1:1", "-m", "org/m", "-o", str(out))
        command = [sys.executable, "-m", "serve_eval", *words]
        with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as running:
            deadline = time.monotonic() + 60
            while not list(out.glob("*.json")) and running.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            said = serve_eval("runs", "view", tmp_path / "nights", "-o", tmp_path / "v.html").stdout
            assert running.poll() is None
            running.kill()
    assert "KILLED" not in said, said
    after = serve_eval("runs", "view", tmp_path / "nights", "-o", tmp_path / "v.html").stdout
    assert "KILLED" in after


def test_the_note_names_the_command_of_unfinished_parts(tmp_path: Path) -> None:
    serve_eval("run", "--launcher", "simulated", "--no-reference", *ASKED, "-o", tmp_path / "ok")
    _begun(_begun(tmp_path / "cmp", "compare.json") / "a", "plan.json")
    sections = [block.section for block in _view(tmp_path).blocks]
    [notes] = [one for one in sections if isinstance(one, TextLines)]
    [note] = [line for line in notes.lines if "unfinished" in line]
    assert note == (
        "left out, because they are unfinished: 1; to finish them: 1 of serve-eval compare, with"
        " the same command and -o FOLDER"
    )
