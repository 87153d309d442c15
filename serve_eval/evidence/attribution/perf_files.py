"""Read the files in which the orchestrator of TensorRT-LLM's main branch records its requests.

`perf_metrics_output_dir` gets one perf_metrics-*.jsonl per start, with a line per request that
names its servers. TRTLLM_REQUEST_TRACE_DIR gets HOUR/requests-*.jsonl, with the header fields of
requests, and responses-*.jsonl. A server appends whole lines while we read. A truncated last line,
or any other unreadable line, is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from serve_eval.evidence.attribution.record import WorkerRecord, record

LINES = "perf_metrics*.jsonl"
LONGEST_LINE = 1 << 20
"""Maximum bytes of a line about a request; a longer one was written by other software."""
LONGEST_TRACE = 1 << 26
"""Maximum bytes of a trace, which holds a prompt."""
REQUEST_ID = "x-request-id"


class Trace(NamedTuple):
    """A request's arrival on the clock of the records, and its number there, as in a trace."""

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
    """The records in a folder and its subfolders, read as they are written."""

    def __init__(self, folder: Path | None) -> None:
        self.found: list[WorkerRecord] = []
        self._folder, self._read = folder, dict[Path, int]()

    def read(self, now_s: float) -> None:
        """Add the records written since the last call."""
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
    """Return the traces in a folder by the X-Request-ID of their requests.

    An id that two requests share is left out.
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
    """Return the files in a folder. Links are left out: they may lead elsewhere."""
    return [
        path for path in sorted(folder.rglob(pattern)) if path.is_file() and not path.is_symlink()
    ]


def _lines(path: Path, longest: int, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield the whole lines of a file after `start`, each with the offset of its end.

    Skips lines that are too long. Yields nothing for a file that cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(start)
            while line := file.readline(longest):
                whole = line
                while whole and not whole.endswith(b"\n"):
                    whole = file.readline(longest)  # The rest of a line too long or incomplete.
                if whole is line:
                    yield line, file.tell()
    except OSError:
        return
