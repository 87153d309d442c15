"""The key that the servers of a launch share, so that no one else can move a request's KV cache.

Every launch draws a new one. Only the config files contain it, readable by this user alone, and
only until the servers have read them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
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
    """
    if not is_given(servers):
        yield context, lambda: None
        return
    masking = Masking([key])
    logs = [context.log_dir / f"{server.name}.log" for server in servers]
    context.notify(f"{NAME}: drawn for this launch")
    try:
        yield (
            replace(context, notify=lambda line: context.notify(masking.text(line))),
            partial(forget, servers, logs, key),
        )
    except ServeEvalError as error:
        error.args = tuple(
            masking.text(part) if isinstance(part, str) else part for part in error.args
        )
        error.hint = error.hint and masking.text(error.hint)
        raise
    finally:
        forget(servers, logs, key)


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
