"""Run the command line in this process, for tests that are not about the process itself.

The whole command runs, from `main` on: arguments, environment, exit code, and both standard
streams as decoded bytes. This saves the imports, a second of processor time per call. Signals,
kills, closed streams and imports are tested in processes of their own.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from unittest import mock

from serve_eval.cli.app import main

OURS = ("SERVE_EVAL_", "OPENAI_", "LLM_MODELS", "TRTLLM", "INTEG")
"""Prefixes of the environment variables that would change what a command does."""


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without serve-eval's variables, and with `more`.

    The terminal is wide. Pages have bars instead of pictures, which take longer than most commands.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**kept, "COLUMNS": "200", "SERVE_EVAL_NO_PICTURES": "1", **more}


def serve_eval(
    *arguments: str | os.PathLike[str], terminal: bool = False, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run `serve-eval ARGUMENTS` with these variables and return what `subprocess.run` would.

    With `terminal`, standard error is one, of COLUMNS columns.
    """
    command = ["serve-eval", *map(str, arguments)]
    code: object = 0
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
        said = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(command, code, *said)


def in_a_process(
    *arguments: str | os.PathLike[str], shell: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own; `shell` follows it, for redirections."""
    command = [sys.executable, "-m", "serve_eval", *map(str, arguments)]
    if shell:
        command = ["bash", "-c", f'set -o pipefail; "$@" {shell}', "bash", *command]
    return subprocess.run(
        command,
        env=environment(**environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        errors="replace",
    )


@contextmanager
def _stream(*, terminal: bool = False) -> Iterator[io.TextIOWrapper]:
    made = _Terminal if terminal else io.TextIOWrapper
    with made(io.BytesIO(), encoding="utf-8", write_through=True) as stream:
        yield stream


class _Terminal(io.TextIOWrapper):
    """A stream that is a terminal to those who ask it."""

    def isatty(self) -> bool:
        return True
