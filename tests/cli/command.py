"""The command line, started in this process: what a test of a command needs unless it is about the
process itself.

It is the whole of it, from `main` on: arguments, environment, exit code, and both standard streams
as bytes that are decoded. Imports are spared, a second of processor time each. Signals, kills,
closed streams and what is imported are tested in processes of their own.
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
"""How the variables begin that would change what a command does."""


def environment(**more: str) -> dict[str, str]:
    """The variables of this process without those that serve-eval reads, on a wide terminal, and
    `more`.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return {**kept, "COLUMNS": "200", **more}


def serve_eval(
    *arguments: str | os.PathLike[str], **environ: str
) -> subprocess.CompletedProcess[str]:
    """`serve-eval ARGUMENTS` with these variables, as `subprocess.run` would have told of it."""
    command = ["serve-eval", *map(str, arguments)]
    code: object = 0
    with (
        mock.patch.dict(os.environ, environment(**environ), clear=True),
        mock.patch.object(sys, "argv", command),
        _stream() as out,
        _stream() as err,
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
    """The same in a process of its own; `shell` is put behind the command, for redirections."""
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
def _stream() -> Iterator[io.TextIOWrapper]:
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) as stream:
        yield stream
