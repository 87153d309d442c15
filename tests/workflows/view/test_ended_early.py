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

from serve_eval.report.page.content import PageContent, TextLines
from serve_eval.workflows.view.index import make_index
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


def _told(page: PageContent) -> list[tuple[str, str, str]]:
    return [(row.label, row.state, row.text) for row in page.rows]


@pytest.mark.parametrize("command", ["compare", "verify", "load", "run"])
def test_a_command_that_died_is_told_with_its_own_remedy(
    command: str, nobody: str, tmp_path: Path
) -> None:
    out = tmp_path / "nights" / command
    asked: dict[str, tuple[str, ...]] = {
        "compare": (nobody, "127.0.0.1:1", *ASKED),
        "verify": (nobody, "127.0.0.1:1", "-m", "org/m"),
        "load": (nobody, *ASKED),
        "run": ("--base-url", nobody, "--no-reference", *ASKED),
    }
    done = serve_eval(command, *asked[command], "-o", out)
    assert done.returncode == 4, done.stderr
    said = serve_eval("view", tmp_path / "nights", "--write", tmp_path / "v.html")
    first, row, *rest = said.stderr.splitlines()
    assert first == "0 series, 1 ended without a result, no drift alarm"
    assert row.startswith(f"ERROR {command} ")
    assert "nothing listens on that port" in row
    way = f"run --resume {out}" if command == "run" else f"{command} with -o {out}"
    assert row.endswith(f"serve-eval {way}")
    assert not rest


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
    page = make_index(tmp_path, served=False)
    assert (page.state, page.headline) == (
        "fail",
        "0 series, 3 ended without a result, no drift alarm",
    )
    shown = [(label, state, text.partition(": ended")[0]) for label, state, text in _told(page)]
    assert shown == [
        ("KILLED", "fail", command),
        ("KILLED", "fail", command),
        ("INTERRUPTED", "warn", f"{command} h:1 a_b"),
    ]


def test_sides_belong_to_their_comparison_and_old_nights_are_no_failure(tmp_path: Path) -> None:
    old = _begun(tmp_path / "old", "compare.json")
    _begun(old / "a", "plan.json")
    _begun(old / "b", "plan.json")
    long_ago = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
    os.utime(old / "compare.json", (long_ago, long_ago))
    _begun(tmp_path / "new", "tools_plan.json", "INTERRUPTED tools h:1: no result")
    page = make_index(tmp_path, served=False)
    assert page.state == "warn"
    assert sorted((label, state) for label, state, _ in _told(page)) == [
        ("INTERRUPTED", "warn"),
        ("KILLED", "warn"),
    ]


def test_a_command_that_still_runs_has_not_ended(tmp_path: Path) -> None:
    _begun(tmp_path / "dead", "plan.json")
    running = _begun(tmp_path / "running", "plan.json")
    with (running / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        page = make_index(tmp_path, served=False)
    assert "1 ended without a result" in page.headline


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
            said = serve_eval("view", tmp_path / "nights", "--write", tmp_path / "v.html").stderr
            assert running.poll() is None
            running.kill()
    assert "KILLED" not in said, said
    after = serve_eval("view", tmp_path / "nights", "--write", tmp_path / "v.html").stderr
    assert "KILLED verify" in after


def test_the_note_names_the_command_of_unfinished_parts(tmp_path: Path) -> None:
    serve_eval("run", "--launcher", "simulated", "--no-reference", *ASKED, "-o", tmp_path / "ok")
    _begun(_begun(tmp_path / "cmp", "compare.json") / "a", "plan.json")
    page = make_index(tmp_path, served=False)
    [notes] = [one for one in page.sections if isinstance(one, TextLines)]
    [note] = [line for line in notes.lines if "unfinished" in line]
    assert note == (
        "left out, because they are unfinished: 1; to finish them: 1 of serve-eval compare, with"
        " the same command and -o FOLDER"
    )
