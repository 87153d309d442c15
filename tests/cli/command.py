"""Run the command line in this process, for tests that are not about the process itself.

The whole command runs, from `main` on: arguments, environment, exit code, and both standard
streams as decoded bytes. This saves the imports, a second of processor time per call. Signals,
kills, closed streams and imports are tested in processes of their own.
"""

import io
import os
import shlex
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from unittest import mock

from serve_eval.cli.app import main

OURS = ("SERVE_EVAL_", "OPENAI_", "LLM_MODELS", "TRTLLM", "INTEG")
"""Prefixes of the environment variables that would change what a command does."""


def environment(**more):
    """Return this process's environment without serve-eval's variables, and with `more`.

    The terminal is wide. Pages have bars instead of pictures, which take longer than most commands.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**kept, "COLUMNS": "200", "SERVE_EVAL_NO_PICTURES": "1", **more}


def serve_eval(
    *arguments,
    terminal=False,
    exits=None,
    prints="",
    tells="",
    **environ,
):
    """Run `serve-eval ARGUMENTS` with these variables and return what `subprocess.run` would.

    The first argument is a line of words, which a shell would split; the others are a word each.
    With `terminal`, standard error is one, of COLUMNS columns. The command must exit with the code
    `exits`, its output hold `prints`, and standard error hold `tells`.
    """
    command = ["serve-eval", *_split(arguments)]
    code = 0
    with (
        mock.patch.dict(os.environ, environment(**environ), clear=True),
        mock.patch.object(sys, "argv", command),
        _stream() as out,
        _stream(terminal=terminal) as err,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ending:
            code = ending.code or 0
        said = [stream.buffer.getvalue().decode() for stream in (out, err)]
    assert isinstance(code, int), code
    done = subprocess.CompletedProcess(command, code, *said)
    _check(done, exits, prints, tells)
    return done


def in_a_process(
    *arguments,
    shell="",
    exits=None,
    prints="",
    tells="",
    **environ,
):
    """Run the command in a process of its own; `shell` follows it, for redirections.

    The other arguments are those of `serve_eval`.
    """
    command = [sys.executable, "-m", "serve_eval", *_split(arguments)]
    if shell:
        command = ["bash", "-c", f'set -o pipefail; "$@" {shell}', "bash", *command]
    done = subprocess.run(
        command,
        env=environment(**environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        errors="replace",
    )
    _check(done, exits, prints, tells)
    return done


def _split(arguments):
    words = [*map(str, arguments)]
    return shlex.split(words[0]) + words[1:] if words and " " in words[0] else words


def _check(done, exits, prints, tells):
    found = (exits in (None, done.returncode), prints in done.stdout, tells in done.stderr)
    expected = f"exit code {exits}, {prints!r}, and on standard error {tells!r}"
    assert all(found), f"{done.returncode}, not {expected}:\n{done.stdout}\n{done.stderr}"


@contextmanager
def _stream(*, terminal=False):
    made = _Terminal if terminal else io.TextIOWrapper
    with made(io.BytesIO(), encoding="utf-8", write_through=True) as stream:
        yield stream


class _Terminal(io.TextIOWrapper):
    """A stream that is a terminal to those who ask it."""

    def isatty(self):
        return True
