"""The files in which an orchestrator of TensorRT-LLM's main line tells of its requests, read back.

`perf_metrics_output_dir` gets perf_metrics-*.jsonl, one for each start: a line a request, which
names its servers. TRTLLM_REQUEST_TRACE_DIR gets HOUR/requests-*.jsonl and responses-*.jsonl, in
which a request has its header fields. A server appends whole lines while this is read; a last line
that is cut, and any other that cannot be read, is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from serve_eval.evaluation.attribution.record import WorkerRecord, record

LINES = "perf_metrics*.jsonl"
LONGEST_LINE = 1 << 20
"""Bytes of a line about a request; a longer one is of somebody else."""
LONGEST_TRACE = 1 << 26
"""Bytes of a trace, which holds a prompt."""
REQUEST_ID = "x-request-id"


class Trace(NamedTuple):
    """What a trace tells of a request: its arrival on the clock of the records, and its number
    there.
    """

    arrival_s: float | None
    number: str | None


class _Request(msgspec.Struct):
    trace_id: str
    headers: list[tuple[str, str]]
    server_arrival_time: float | None = None


class _Response(msgspec.Struct):
    trace_id: str
    disagg_request_id: int | str | None = None


_ANY = msgspec.json.Decoder()
_REQUESTS, _RESPONSES = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_Response)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Records:
    """The records in a folder and those below it, as they come."""

    def __init__(self, folder: Path | None) -> None:
        self.found: list[WorkerRecord] = []
        self._folder, self._read = folder, dict[Path, int]()

    def read(self, now_s: float) -> None:
        """Add those that have come since the last time."""
        for path in _files(self._folder, LINES) if self._folder else ():
            for line, end in _lines(path, LONGEST_LINE, self._read.get(path, 0)):
                self._read[path] = end
                try:
                    one = record(_ANY.decode(line), now_s, now_s)
                except _UNREADABLE:
                    continue
                if one is not None:
                    self.found.append(one)


def traces(folder: Path) -> dict[str, Trace]:
    """Return the traces in a folder by the X-Request-ID of their requests; an id that two requests
    have names none.
    """
    numbers: dict[str, str] = {}
    for path in _files(folder, "responses-*.jsonl"):
        for line, _ in _lines(path, LONGEST_TRACE):
            try:
                response = _RESPONSES.decode(line)
            except _UNREADABLE:
                continue
            if response.disagg_request_id is not None:
                numbers[response.trace_id] = str(response.disagg_request_id)
    found: dict[str, Trace | None] = {}
    for path in _files(folder, "requests-*.jsonl"):
        for line, _ in _lines(path, LONGEST_TRACE):
            try:
                request = _REQUESTS.decode(line)
            except _UNREADABLE:
                continue
            for name in {
                value for header, value in request.headers if header.lower() == REQUEST_ID
            }:
                trace = Trace(request.server_arrival_time, numbers.get(request.trace_id))
                found[name] = None if name in found else trace
    return {name: trace for name, trace in found.items() if trace is not None}


def _files(folder: Path, pattern: str) -> list[Path]:
    """Return the files in a folder. None that is a link: it may lead elsewhere."""
    return [
        path for path in sorted(folder.rglob(pattern)) if path.is_file() and not path.is_symlink()
    ]


def _lines(path: Path, longest: int, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the whole lines of a file from a place on, each with the place behind it, but for those
    that are too long. A file that cannot be read has none.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            while line := file.readline(longest):
                whole = line
                while whole and not whole.endswith(
                    b"\n"
                ):  # the rest of one that is too long, or is being written
                    whole = file.readline(longest)
                if whole is line:
                    yield line, file.tell()
    except OSError:
        return
