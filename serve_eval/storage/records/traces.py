"""Read and write served.jsonl: the server behind a shared endpoint that answered each request."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from serve_eval.storage.file_names import TRACE_FILE


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of one request: the last attempt of a sample `id`, which began at `started_s`.

    `how` names the match between request and server (a word of `attribution.matching`). The time
    and size of the transfer of its KV cache are set if a server reported them.
    """

    task: str
    id: str
    started_s: float
    context: str | None
    generation: str | None
    how: str
    kv_transfer_s: float | None = None
    kv_bytes: float | None = None


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Served)


def read_traces(run: Path) -> dict[str, dict[str, list[Served]]] | None:
    """Return the lines of a run folder by task and sample, or None if there is no such file.

    Skips lines that cannot be read, since the file is only informative.
    """
    try:
        lines = (run / TRACE_FILE).read_bytes().splitlines()
    except OSError:
        return None
    found: dict[str, dict[str, list[Served]]] = {}
    for line in lines:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            one = _decoder.decode(line)
            found.setdefault(one.task, {}).setdefault(one.id, []).append(one)
    return found


def append_traces(run: Path, lines: Iterable[Served]) -> None:
    """Append lines to those of a run folder. Raises OSError."""
    with os.fdopen(
        os.open(run / TRACE_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb"
    ) as file:
        file.write(b"".join(_encode(one) + b"\n" for one in lines))
