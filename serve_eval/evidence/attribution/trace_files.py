"""Match servers to requests from the files of the main branch's orchestrator: exact under any load.

If an endpoint's info has `perf_metrics`, its orchestrator was asked to write them. They are read
once all requests are answered, together with requests that earlier sessions of the run left
unjoined. The results are added to OUT/served.jsonl. If no request can be joined, a warning gives
the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from serve_eval.client.client import Client
from serve_eval.errors import ServeEvalError
from serve_eval.evidence.attribution import perf_files
from serve_eval.evidence.attribution.exact_matching import Joined, join_exactly
from serve_eval.evidence.attribution.last_attempts import list_last_attempts, read_known
from serve_eval.evidence.attribution.perf_files import Records, Trace
from serve_eval.evidence.attribution.record import WorkerRecord
from serve_eval.schema import Attempt, Endpoint
from serve_eval.storage.journal import Journal
from serve_eval.storage.records.traces import Served, append_traces

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
    traces = await asyncio.to_thread(perf_files.traces, folders.traces)
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
