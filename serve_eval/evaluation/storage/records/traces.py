"""Read and write served.jsonl: which servers behind one address answered which request."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from serve_eval.evaluation.storage.file_names import TRACE_FILE


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of one request: for a sample `id` of a task, begun at `started_s` as its last
    attempt says.

    `how` says by what the request was matched (a word of `attribution.matching`). Time and size of
    the transfer of its KV cache are there where a server reported them.
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
    """Return the lines of a run folder by task and sample; None where there is no such file.

    Lines that cannot be read are passed over: the file only informs.
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
    """Add lines to those of a run folder. Raises OSError."""
    with os.fdopen(
        os.open(run / TRACE_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb"
    ) as file:
        file.write(b"".join(_encode(one) + b"\n" for one in lines))
