"""Run commands in processes that end by SIGKILL before the n-th change of a folder.

`python -m tests.kills.test_killed_anywhere` reads a JSON object per line, forks, and the child runs
the command: so no command pays for imports. An audit hook counts each file that is opened
for writing, made, renamed or removed below the folder, so every state between two changes is met.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve_eval.launchers._simulated.config import SimulatorConfig
from serve_eval.launchers._simulated.simulator import create_app
from serve_eval.whole_file import PARTIAL
from tests.cli.command import environment
from tests.scripted_server import serve_in_thread

TIMEOUT_S = 60
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
PATHS = {"os.mkdir": 1, "os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.symlink": 2}
"""The audit events that change a folder, and the number of their paths."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command: its exit code (-9: killed), the changes so far, and its output."""

    code: int
    changes: int
    text: str


class Forks:
    """A process that forks a child for each command."""

    def __init__(self, log):
        self._log = log

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kills.test_killed_anywhere"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
            cwd=Path(__file__).parents[2],
        )
        return self

    def __exit__(
        self,
        kind,
        error,
        trace,
    ):
        self._process.stdin.close()
        self._process.wait(TIMEOUT_S)
        self._process.stdout.close()

    def run(self, arguments, folder, cwd, *, kill_at=0):
        """Run a command, killed before the change of that number (0: never)."""
        asked = {"arguments": arguments, "folder": str(folder), "cwd": str(cwd)}
        assert self._process.stdout is not None
        self._process.stdin.write(
            json.dumps({**asked, "log": str(self._log), "kill_at": kill_at}) + "\n"
        )
        self._process.stdin.flush()
        code, changes = json.loads(self._process.stdout.readline())
        return Ended(code, changes, self._log.read_text(errors="replace"))


def _watch(folder, count, kill_at):
    """Count the changes below a folder, and end the process before the one of that number."""

    def hook(event, found):
        if event == "open":
            if not found[2] & WRITES:
                return
            paths = found[:1]
        elif event in PATHS:
            paths = found[: PATHS[event]]
        else:
            return
        if not any(isinstance(one, str | os.PathLike) and _lies(folder, one) for one in paths):
            return
        changes = struct.unpack("i", count[:4])[0] + 1
        count[:4] = struct.pack("i", changes)
        if changes == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _lies(folder, path):
    return Path(path).absolute().is_relative_to(folder)


def _run_child(asked, count):
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.chdir(asked["cwd"])
    signal.alarm(TIMEOUT_S)
    sys.argv = ["serve-eval", *asked["arguments"]]
    _watch(asked["folder"], count, asked["kill_at"])
    from serve_eval.cli.app import main

    code = 4
    try:
        main()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 0
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _serve():
    import serve_eval.cli.app as app
    from serve_eval.cli._commands import walk

    for words, _ in walk():
        app.make_command(*words)
    import serve_eval.evaluation.evaluate
    import serve_eval.workflows  # noqa: F401

    for line in sys.stdin:
        count = mmap.mmap(-1, 4)
        child = os.fork()
        if not child:
            _run_child(json.loads(line), count)
        _, status = os.waitpid(child, 0)
        told = [os.waitstatus_to_exitcode(status), struct.unpack("i", count[:4])[0]]
        print(json.dumps(told), flush=True)


ASKED = ["-t", "passkey_short", "--limit", "4", "--model", "m"]
WRITTEN = {
    "merge": ["runs", "merge", "s1", "s2", "-o", "out"],
    "rescore": ["judge", "--rescore", "r", "-o", "out"],
    "capsule": ["show", "r", "27", "60", "--capsule", "-o", "out"],
    "export": ["runs", "export", "r", "-o", "out"],
    "canaries": [
        "check",
        "invariants",
        "URL",
        "--canaries",
        "--limit",
        "4",
        "--model",
        "m",
        "-o",
        "out",
    ],
}
ASKING = {
    "run": ["run", "--base-url", "URL", *ASKED, "--no-reference", "-o", "out"],
    "compare": ["compare", "URL", "OTHER", *ASKED, "-o", "out"],
    "load": [
        "check",
        "load",
        "URL",
        *ASKED,
        "--concurrency",
        "1,2",
        "--set",
        "limits.order_seed=1",
        "-o",
        "out",
    ],
    "invariants": ["check", "invariants", "URL", *ASKED, "-o", "out"],
    "suite": ["run", "suite.yaml", "-o", "out"],
    "tools": [
        *("check", "tools", "URL", "--model", "m", "--limit", "2", "--concurrency", "1"),
        *("--set", "tools.kinds=auto", "-o", "out"),
    ],
    "take": [
        *("references", "take", "--runs", "1", "URL", "-t", "passkey_short", "--model", "m"),
        *("--references-dir", "refs", "-o", "out"),
    ],
}
"""The commands by name; URL and OTHER stand for two endpoints, and out/ is what they write."""
LEFT = ("steps.jsonl", PARTIAL)
"""Endings of what only killed runs have: the unproven answers, and a file that was half written."""


@dataclass(frozen=True, slots=True)
class Killed:
    """A folder with finished runs and shards, in which commands write `out`."""

    forks: Forks
    folder: Path
    urls: dict[str, str]

    def give(self, command, *, kill_at=0, out="out"):
        """Give a command, killed before the change of that number (0: never)."""
        words = [self.urls.get(word, word) for word in command]
        return self.forks.run(words, self.folder / out, self.folder, kill_at=kill_at)

    def clear(self):
        """Remove what commands wrote."""
        for name in ("out", "refs"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def list_files(self):
        """Return the files in the folder, without logs, leftovers and what names kills."""
        out = self.folder / "out"
        found = {str(file.relative_to(out)) for file in out.rglob("*") if file.is_file()}
        return {name for name in found if not name.endswith(LEFT) and "logs/" not in name}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    app = create_app(SimulatorConfig(model="m"))
    other = create_app(SimulatorConfig(model="m"))
    with (
        serve_in_thread(app) as url,
        serve_in_thread(other) as second,
        Forks(folder / "log") as forks,
    ):
        found = Killed(forks, folder, {"URL": url, "OTHER": second})
        (folder / "suite.yaml").write_text(
            f"name: s\nplans:\n  - {{base_url: '{url}', model: m, limit: 4, name: a,"
            " tasks: [passkey_short], no_reference: true}\n"
        )
        run = ["run", "--base-url", "URL", *ASKED, "--no-reference"]
        for name, more in (("s1", ["--shard", "1/2"]), ("s2", ["--shard", "2/2"]), ("r", [])):
            ended = found.give([*run, *more, "-o", name], out=name)
            assert ended.code in (0, 3), ended.text
        yield found


def _kill_at_each(killed, command, step=1):
    killed.clear()
    whole = killed.give(command)
    files = killed.list_files()
    assert whole.code in (0, 3), whole.text
    assert whole.changes > 3
    for moment in range(1, whole.changes + 1, step):
        killed.clear()
        ended = killed.give(command, kill_at=moment)
        again = killed.give(command)
        assert (ended.code, again.code) == (-9, whole.code), f"{moment}: {again.text}"
        assert killed.list_files() == files, moment


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_copied_begins_anew_after_a_kill_at_any_moment(killed, name):
    _kill_at_each(killed, WRITTEN[name], step=11)


@pytest.mark.parametrize("name", ["tools", "take"])
def test_a_check_goes_on_after_a_kill_in_its_first_second(killed, name):
    killed.clear()
    whole = killed.give(ASKING[name]).code
    for moment in (3, 5):
        killed.clear()
        assert killed.give(ASKING[name], kill_at=moment).code == -9
        again = killed.give(ASKING[name])
        assert again.code == whole, f"{moment}: {again.text}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKING)
def test_what_is_asked_goes_on_after_a_kill_at_any_moment(killed, name):
    _kill_at_each(killed, ASKING[name], step=9)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_copied_begins_anew_after_every_kill(killed, name):
    _kill_at_each(killed, WRITTEN[name])


@pytest.mark.parametrize("name", ["merge", "rescore", "tools", "run", "take"])
@pytest.mark.parametrize("foreign", ["notes.txt", "lock", "copying.json"])
def test_a_foreign_folder_is_refused(killed, name, foreign):
    killed.clear()
    (killed.folder / "out").mkdir()
    (killed.folder / "out" / foreign).write_text("not ours")
    (killed.folder / "out/mine.txt").write_text("not ours either")
    ended = killed.give({**WRITTEN, **ASKING}[name])
    assert ended.code == 2, ended.text
    assert (killed.folder / "out/mine.txt").read_text() == "not ours either"


def test_a_finished_merge_of_others_and_what_was_asked_since_are_kept(killed):
    killed.clear()
    merged = killed.give(WRITTEN["merge"])
    assert killed.give(WRITTEN["merge"]).code == merged.code
    other = killed.give(WRITTEN["rescore"])
    assert (other.code, "not an empty folder" in other.text) == (2, True), other.text
    asked = killed.give(["run", "--resume", "out"])
    assert asked.code == merged.code, asked.text
    refused = killed.give(WRITTEN["merge"])
    assert (refused.code, "not an empty folder" in refused.text) == (2, True), refused.text


def test_an_unfinished_merge_is_not_continued_by_asking(killed):
    killed.clear()
    assert killed.give(WRITTEN["merge"], kill_at=40).code == -9
    asked = killed.give(["run", "--resume", "out"])
    assert (asked.code, "unfinished copy" in asked.text) == (2, True), asked.text


if __name__ == "__main__":
    _serve()
