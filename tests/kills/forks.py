"""Run commands in processes that end by SIGKILL before the n-th change of a folder.

`python -m tests.kills.forks` reads a JSON object per line, forks, and the child runs the command:
so no command pays for imports. An audit hook counts each file that is opened for writing, made,
renamed or removed below the folder, so that every state of the folder between two changes is met.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cli.command import environment

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
            [sys.executable, "-m", "tests.kills.forks"],
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


if __name__ == "__main__":
    _serve()
