"""The key that the servers of a launch share, so that no one else can move a request's KV cache.

Every launch draws a new one. Only files that this user alone can read contain it: the config files
until the servers have read them, then a file of its own until the servers end. `serve-eval
attribute`, which asks a pair of servers past their orchestrator, signs with it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from serve_eval.errors import ServeEvalError
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.masking import Masking
from serve_eval.schema import LaunchContext
from serve_eval.whole_file import write_whole

NAME = "internal_request_auth_key"
SHOWN = "drawn for each launch"
"""Placeholder for the key in a dry run."""
GONE = f"# {NAME} was here while the servers started.\n"
KEPT = "pair.key"
"""Name of the file with the key, in the folder of the logs, while the servers run."""


def draw_key() -> str:
    """Return a new key."""
    return secrets.token_hex(32)


def give_key(server: Server, key: str) -> Server:
    """Return the server with the key in its config files."""
    return replace(
        server, files={path: f"{text}{NAME}: {key}\n" for path, text in server.files.items()}
    )


def is_given(servers: Iterable[Server]) -> bool:
    """Return True if servers have a key in their files."""
    return any(_line(text) for server in servers for text in server.files.values())


@contextmanager
def secret(
    servers: Sequence[Server], context: LaunchContext, key: str
) -> Iterator[tuple[LaunchContext, Callable[[], None]]]:
    """Keep the key out of messages and files for the block.

    Yields a context that masks it, and a function to call once the servers have read their files.
    From then on the file KEPT has it, until the block ends.
    """
    if not is_given(servers):
        yield context, lambda: None
        return
    masking = Masking([key])
    logs = [context.log_dir / f"{server.name}.log" for server in servers]
    kept = context.log_dir / KEPT
    kept.unlink(missing_ok=True)  # from an earlier launch whose end was not orderly

    def keep_apart() -> None:
        forget(servers, logs, key)
        write_whole(kept, f"{key}\n".encode())

    context.notify(f"{NAME}: drawn for this launch")
    try:
        yield (
            replace(context, notify=lambda line: context.notify(masking.text(line))),
            keep_apart,
        )
    except ServeEvalError as error:
        error.args = tuple(
            masking.text(part) if isinstance(part, str) else part for part in error.args
        )
        error.hint = error.hint and masking.text(error.hint)
        raise
    finally:
        kept.unlink(missing_ok=True)
        forget(servers, logs, key)


def read_kept(log_dir: Path) -> str | None:
    """Return the key of the launch with these logs, while it runs.

    A file of another user, or one that others can read, is not read.
    """
    with (
        suppress(OSError, UnicodeDecodeError),
        os.fdopen(os.open(log_dir / KEPT, os.O_RDONLY | os.O_NOFOLLOW)) as file,
    ):
        there = os.fstat(file.fileno())
        if there.st_uid == os.getuid() and not there.st_mode & 0o077:
            return file.read().strip() or None
    return None


def forget(servers: Iterable[Server], logs: Iterable[Path], key: str) -> None:
    """Remove the key from written files: its line from configs, and each piece of it from logs.

    In logs, stars of the same length replace it, since a server may still be writing.
    """
    for path, text in {
        path: text for server in servers for path, text in server.files.items()
    }.items():
        if line := _line(text):
            with suppress(OSError):
                write_whole(path, text.replace(line, GONE).encode())
    masking = Masking([key])
    for log in logs:
        with suppress(OSError):
            _star_out(log, masking)


def _line(text: str) -> str:
    return next(
        (line for line in text.splitlines(keepends=True) if line.startswith(f"{NAME}: ")), ""
    )


def _star_out(log: Path, masking: Masking) -> None:
    with log.open("rb") as file, log.open("r+b") as over:
        for line in iter(file.readline, b""):
            told = line.decode("latin-1")
            if (blanked := masking.blank(told)) != told:
                over.seek(file.tell() - len(line), os.SEEK_SET)
                over.write(blanked.encode("latin-1"))
