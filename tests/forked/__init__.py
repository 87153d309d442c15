"""Python programs as forks of a process that has imported what they need: a start in milliseconds.

A test that is about what a program does, and not about its start, runs it by `run_forked` instead
of `subprocess.run`. The program has a process of its own all the same: its folder, environment,
streams, signals and exit code. Its imports are those of the server, and variables such as
PYTHONWARNINGS, which an interpreter reads at its start, do nothing.
"""

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def _start():
    """Start the server of this process, which ends when its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.forked.server"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_forked(module, *arguments, folder, env, timeout_s):
    """Run `python -m MODULE ARGUMENTS` in a folder and return what `subprocess.run` would.

    A program that runs longer than `timeout_s` is killed, and raises subprocess.TimeoutExpired.
    """
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as err,
    ):
        streams = [f"/proc/{os.getpid()}/fd/{one.fileno()}" for one in (out, err)]
        code = _ask([module, *arguments], str(folder), dict(env), streams, timeout_s)
        said = []
        for one in (out, err):
            one.seek(0)
            said.append(one.read())
    command = [sys.executable, "-m", module, *arguments]
    if code is None:
        raise subprocess.TimeoutExpired(command, timeout_s, *said)
    return subprocess.CompletedProcess(command, code, *said)


def _ask(
    program,
    folder,
    env,
    streams,
    timeout_s,
):
    server = _start()
    assert server.stdin is not None
    assert server.stdout is not None
    asked = {
        "program": program,
        "folder": folder,
        "env": env,
        "streams": streams,
        "timeout_s": timeout_s,
    }
    server.stdin.write(json.dumps(asked) + "\n")
    server.stdin.flush()
    line = server.stdout.readline()
    assert line, f"the server of forks ended with exit code {server.wait()}"
    return json.loads(line)
