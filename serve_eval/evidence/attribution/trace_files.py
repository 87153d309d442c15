"""Match servers to requests exactly, from the files of the main branch's orchestrator.

If an endpoint's info has `perf_metrics`, its orchestrator was asked to write them. They are read
once all requests are answered, together with requests that earlier sessions of the run left
unjoined. The results are added to OUT/served.jsonl. If no request can be joined, a warning gives
the reason.

`perf_metrics_output_dir` gets one perf_metrics-*.jsonl per start, with a line per request that
names its servers. TRTLLM_REQUEST_TRACE_DIR gets HOUR/requests-*.jsonl, with the header fields of
requests, and responses-*.jsonl. A server appends whole lines while we read. A truncated last line,
or any other unreadable line, is skipped.

Both sides report, to the nanosecond, when a request arrived at the orchestrator: the record, and
the answer or the trace with our X-Request-ID. The match is therefore exact under any load. If no
arrival time matches, the request's number in the trace may identify the record. A request that
matches two records, or a record that two requests match, is not joined.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from serve_eval.client.client import Client
from serve_eval.errors import ServeEvalError
from serve_eval.evidence.attribution.clock_offset import WorkerRecord, record
from serve_eval.evidence.attribution.matching import METRICS, TRACES, list_last_attempts, read_known
from serve_eval.schema import Attempt, Endpoint
from serve_eval.storage.answer_origins import Served, append_traces
from serve_eval.storage.journal import Journal

WAIT_S, POLL_S, SETTLE_S = 5.0, 0.1, 0.5
"""Seconds to wait for the lines of answered requests, between two checks, and for traces alone.

Lines are written shortly after the answers.
"""


class Folders(NamedTuple):
    """The folders in which the orchestrator writes its records and its traces."""

    output: Path | None
    traces: Path | None

    @classmethod
    def of(cls, endpoint: Endpoint) -> Folders | None:
        """Return the folders of an endpoint, or None if it was not asked for records."""
        if (told := endpoint.info.perf_metrics) is None:
            return None
        return cls(*(Path(one) if one else None for one in (told.output_dir, told.trace_dir)))


class _Found(NamedTuple):
    """The attempts that are not joined yet, by task and sample, and the records that join them."""

    open: dict[str, tuple[str, str, Attempt]]
    records: Sequence[WorkerRecord]
    joined: dict[str, Joined]

    @property
    def waited_for(self) -> bool:
        """True if an answer reports a record that is not there yet."""
        return any(
            attempt.timing and name not in self.joined
            for name, (_, _, attempt) in self.open.items()
        )


@asynccontextmanager
async def note_servers_from_files(
    client: Client, journals: Mapping[str, Journal], folder: Path, warn: Callable[[str], None]
) -> AsyncIterator[None]:
    """Note in the folder which servers answered the requests of the block, as files show.

    `journals` are those of the tasks, by name. Enter it before `trace.note_servers`, so that it
    knows what that found.
    """
    folders, began = Folders.of(client.endpoint), client.now()
    if folders is None:
        yield
        return
    wait_s = 0.0
    try:
        yield
        wait_s = WAIT_S
    finally:
        with suppress(ServeEvalError, OSError):  # Attribution is optional.
            found = await _read_until_complete(folders, journals, folder, client, wait_s)
            if lines := list(_lines(found)):
                append_traces(folder, map(client.masking.value, lines) if client.masking else lines)
            known = any(one.started_s >= began for one in lines)
            if not known and (
                line := await asyncio.to_thread(_why_none, folders, found, journals, folder, began)
            ):
                warn(line)


async def _read_until_complete(
    folders: Folders, journals: Mapping[str, Journal], folder: Path, client: Client, wait_s: float
) -> _Found:
    """Read the files until they hold all that the answers reported, or time is up."""
    began = client.now()
    unjoined = await asyncio.to_thread(lambda: dict(_list_unjoined(journals, folder)))
    records = Records(folders.output if unjoined else None)
    while True:
        found = await asyncio.to_thread(_read, records, unjoined, client.now())
        if not found.waited_for or folders.output is None or client.now() - began >= wait_s:
            break
        await asyncio.sleep(POLL_S)
    if len(found.joined) == len(unjoined) or folders.traces is None:
        return found
    # In a thread: traces hold all prompts and are long.
    traces = await asyncio.to_thread(read_traces, folders.traces)
    if traces and wait_s:
        # If the answers report nothing, it is unknown what is still to come.
        await asyncio.sleep(SETTLE_S)
    return await asyncio.to_thread(_read, records, unjoined, client.now(), traces)


def _read(
    records: Records,
    unjoined: dict[str, tuple[str, str, Attempt]],
    now_s: float,
    traces: Mapping[str, Trace] = MappingProxyType({}),
) -> _Found:
    records.read(now_s)
    attempts = [attempt for _, _, attempt in unjoined.values()]
    return _Found(unjoined, records.found, join_exactly(attempts, records.found, traces))


def _list_unjoined(
    journals: Mapping[str, Journal], folder: Path
) -> Iterator[tuple[str, tuple[str, str, Attempt]]]:
    known = read_known(folder)
    for one in list_last_attempts(journals):
        if one.key not in known:
            yield one.attempt.request_id, (one.task, one.sample_id, one.attempt)


def _lines(found: _Found) -> Iterator[Served]:
    for request_id, one in found.joined.items():
        task, name, attempt = found.open[request_id]
        yield Served(
            task=task,
            id=name,
            started_s=attempt.start_s,
            context=one.record.context,
            generation=one.record.generation,
            how=one.how,
            kv_transfer_s=one.kv_transfer_s,
            kv_bytes=one.record.kv_bytes,
        )


def _why_none(
    folders: Folders, found: _Found, journals: Mapping[str, Journal], folder: Path, began: float
) -> str | None:
    """Return a warning if no answer since `began` is joined to its servers."""
    known = read_known(folder)
    answered = [
        one for one in list_last_attempts(journals) if one.answered and one.attempt.start_s >= began
    ]
    if not answered or any(one.key in known for one in answered):
        return None
    told = any(one.attempt.timing for one in answered)
    if folders.output is None:
        why = (
            "the answers report times but no server: set launcher.perf_metrics_dir to the"
            " perf_metrics_output_dir of the orchestrator"
            if told
            else "the answers report nothing: its file needs return_perf_metrics: true"
        )
    elif not found.records and told:
        why = (
            f"the answers report times, but {folders.output} has no lines: give the"
            " perf_metrics_output_dir of the orchestrator as seen from this machine"
        )
    elif not found.records:
        why = (
            "GET /perf_metrics reported no request that could be identified, and nothing was"
            f" written to {folders.output}"
        )
    else:
        needs = (
            ""
            if told
            else ", and the answers report nothing: its file needs return_perf_metrics: true"
        )
        why = (
            f"none of the {len(found.records)} requests in {folders.output} belongs to this"
            f" run{needs}"
        )
    return (
        f"perf metrics were requested, but the servers of none of {len(answered)} answers are"
        f" known: {why}; serve-eval check workers asks each server separately"
    )


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
            for line, end in _list_lines(path, LONGEST_LINE, self._read.get(path, 0)):
                self._read[path] = end
                try:
                    one = record(_ANY.decode(line), now_s, now_s)
                except _UNREADABLE:
                    continue
                if one is not None:
                    self.found.append(one)


def read_traces(folder: Path) -> dict[str, Trace]:
    """Return the traces in a folder by the X-Request-ID of their requests.

    An id that two requests share is left out.
    """
    numbers: dict[str, str] = {}
    for path in _files(folder, "responses-*.jsonl"):
        for line, _ in _list_lines(path, LONGEST_TRACE):
            try:
                response = _RESPONSES.decode(line)
            except _UNREADABLE:
                continue
            if response.disagg_request_id is not None:
                numbers[response.trace_id] = str(response.disagg_request_id)
    found: dict[str, Trace | None] = {}
    for path in _files(folder, "requests-*.jsonl"):
        for line, _ in _list_lines(path, LONGEST_TRACE):
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


def _list_lines(path: Path, longest: int, start: int = 0) -> Iterator[tuple[bytes, int]]:
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


DECIMALS = 9
"""Decimals of a time in an answer; fewer are accepted."""


class Joined(NamedTuple):
    """A record, the source that joined it, and the KV cache transfer time.

    The time is that of the answer, else that of the record.
    """

    record: WorkerRecord
    how: str
    kv_transfer_s: float | None


def join_exactly(
    attempts: Iterable[Attempt], records: Iterable[WorkerRecord], traces: Mapping[str, Trace]
) -> dict[str, Joined]:
    """Return the joined records by the X-Request-ID of the attempts."""
    index = _Index(records)
    named: dict[str, tuple[WorkerRecord, str]] = {}
    transfers: dict[str, float | None] = {}
    for attempt in attempts:
        name, timing, trace = attempt.request_id, attempt.timing, traces.get(attempt.request_id)
        transfers[name] = None if timing is None else timing.kv_transfer_s
        if timing is not None and (one := index.at(timing.arrival)) is not None:
            named[name] = one, METRICS
        elif trace is not None and (one := index.of(trace)) is not None:
            named[name] = one, TRACES
    owners = Counter(id(one) for one, _ in named.values())
    return {
        name: Joined(one, how, one.kv_transfer_s if transfers[name] is None else transfers[name])
        for name, (one, how) in named.items()
        if owners[id(one)] == 1
    }


class _Index:
    """Finds the record with a given arrival or number, if there is exactly one."""

    def __init__(self, records: Iterable[WorkerRecord]) -> None:
        self._records = list(records)
        self._by_arrival: dict[int, dict[str, list[WorkerRecord]]] = {}
        self._by_id: dict[str, list[WorkerRecord]] = defaultdict(list)
        for one in self._records:
            for name in one.ids:
                self._by_id[name].append(one)

    def at(self, arrival: str) -> WorkerRecord | None:
        decimals = len(arrival.partition(".")[2])
        if decimals not in self._by_arrival:
            found: dict[str, list[WorkerRecord]] = defaultdict(list)
            for one in self._records:
                if one.arrival_s is not None:
                    found[f"{one.arrival_s:.{decimals}f}"].append(one)
            self._by_arrival[decimals] = found
        return _only(self._by_arrival[decimals].get(arrival, []))

    def of(self, trace: Trace) -> WorkerRecord | None:
        found = None if trace.arrival_s is None else self.at(f"{trace.arrival_s:.{DECIMALS}f}")
        if found is None and trace.number is not None:
            found = _only(self._by_id.get(trace.number, []))
        return found


def _only(found: list[WorkerRecord]) -> WorkerRecord | None:
    return found[0] if len(found) == 1 else None
