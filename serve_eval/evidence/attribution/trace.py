"""Record the servers behind a shared endpoint that answered each request, during a run.

No further requests are sent to the model. The orchestrator of trtllm-serve 1.2 reports each request
once at GET /perf_metrics: a reader takes it away from other readers. OUT/served.jsonl has a line
per request that could be joined. A failure here never fails a run. `trace_files` reads what the
main branch's orchestrator writes instead.

The journals hold these names with the attempts. At the end of a session, OUT/served.jsonl gets a
line for each sample whose last attempt has any. A session that was killed did not write its lines,
so the next one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.client import Client
from serve_eval.errors import ServeEvalError
from serve_eval.evidence.attribution.clock_offset import SentAttempt, WorkerRecord, record
from serve_eval.evidence.attribution.matching import HEADERS, join, list_last_attempts, read_known
from serve_eval.plugins.scope import open_scope
from serve_eval.schema import Failure
from serve_eval.storage.answer_origins import Served, append_traces
from serve_eval.storage.journal import Journal

POLL_S, SLOWEST_POLL_S = 1.0, 10.0
"""Seconds between two readings: while records arrive, and at most if none do."""
SETTLE_S = 0.5
"""Seconds from the last answer to the last reading: records arrive after answers."""
READ_TIMEOUT_S = 10.0


@asynccontextmanager
async def note_servers(
    client: Client, journals: Mapping[str, Journal], folder: Path
) -> AsyncIterator[None]:
    """Note in the folder which servers answer the requests of the block, if that is reported.

    `journals` are those of the tasks, by name.
    """
    door = await _door(client)
    if door is None:
        yield
        return
    began, records = client.now(), list[WorkerRecord]()
    door.listeners.append((client, records))
    try:
        yield
        if await door.read() or door.told:
            await asyncio.sleep(SETTLE_S)
            await door.read()
    finally:
        door.listeners = [one for one in door.listeners if one[1] is not records]
        if not door.listeners:
            door.close()
        if records:
            # Attribution is optional: its errors must not hide the error that ended the run.
            with suppress(ServeEvalError, OSError):
                # In a thread: 10,000 records take seconds, and other runs of this process may have
                # requests in flight.
                await asyncio.to_thread(
                    lambda: append_traces(
                        folder, _join(journals, began, records, read_known(folder))
                    )
                )


class _Door:
    """Reads the request records of one endpoint for all runs that share it.

    The server hands out each record only once, so a second reader would miss it.
    """

    def __init__(
        self, client: Client, doors: dict[tuple[object, ...], _Door], place: tuple[object, ...]
    ) -> None:
        self.listeners: list[tuple[Client, list[WorkerRecord]]] = []
        self.told = False
        self._doors, self._place, self._read_s = doors, place, client.now()
        self._reading = asyncio.Lock()
        self._task = asyncio.create_task(self._watch())

    async def read(self) -> bool:
        """Pass the records since the previous reading to all listeners.

        Return True if there were any.
        """
        async with self._reading:
            if not self.listeners:
                return False
            client = self.listeners[0][0]
            told = await _get(client, "/perf_metrics")
            before, self._read_s = self._read_s, client.now()
            listed = told if isinstance(told, list) else []
            found = [
                one for entry in listed if (one := record(entry, before, self._read_s)) is not None
            ]
            for _, records in self.listeners:
                records += found
            self.told |= bool(found)
            return bool(found)

    async def _watch(self) -> None:
        pause = POLL_S
        while True:
            await asyncio.sleep(pause)
            pause = POLL_S if await self.read() else min(SLOWEST_POLL_S, 1.5 * pause)

    def close(self) -> None:
        del self._doors[self._place]
        self._task.cancel()


async def _door(client: Client) -> _Door | None:
    """Return the reader of a client's endpoint, or None if the endpoint reports no records.

    Records from before the first reading are discarded.
    """
    doors: dict[tuple[object, ...], _Door] = open_scope().shared
    place: tuple[object, ...] = "door", asyncio.get_running_loop(), client.endpoint.base_url
    if place in doors:
        return doors[place]
    if not isinstance(await _get(client, "/cluster_info"), dict):
        # Not an orchestrator: /perf_metrics of a single server is for other readers.
        return None
    if not isinstance(await _get(client, "/perf_metrics"), list):
        return None
    if place not in doors:
        doors[place] = _Door(client, doors, place)
    return doors[place]


async def _get(client: Client, path: str) -> object:
    """Return the JSON of a route next to /v1, without our secrets because it is saved.

    None if there is no such route.
    """
    root = urlsplit(client.endpoint.base_url).path.removesuffix("/v1")
    reply = await client.exchange("GET", root + path, timeout_s=READ_TIMEOUT_S)
    if isinstance(reply, Failure) or reply.error is not None or reply.status != 200:
        return None
    try:
        told: object = msgspec.json.decode(reply.content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return told


def _join(
    journals: Mapping[str, Journal],
    began: float,
    records: list[WorkerRecord],
    known: set[tuple[str, str, float]],
) -> Iterator[Served]:
    """Yield the samples whose last attempt, started since `began`, is joined to a record.

    Known ones take part in the vote but are left out.
    """
    sent: list[SentAttempt] = []
    last: dict[int, tuple[str, str]] = {}
    for task, journal in journals.items():
        for kept in journal.records():
            result = kept.response or kept.failure
            if result is None or (
                kept.response is not None and kept.response.choice_logprobs is not None
            ):
                continue  # Each choice has its own requests.
            answer_id = None if kept.response is None else kept.response.answer_id
            for attempt in result.attempts:
                if attempt.start_s >= began:
                    final = attempt is result.attempts[-1]
                    if final:
                        last[len(sent)] = task, kept.id
                    sent.append(
                        SentAttempt(attempt.start_s, attempt.end_s, answer_id if final else None)
                    )
    for i, (one, how) in join(sent, records).items():
        if i in last:
            task, name = last[i]
            if (task, name, sent[i].start_s) in known:
                continue
            yield Served(
                task=task,
                id=name,
                started_s=sent[i].start_s,
                context=one.context,
                generation=one.generation,
                how=how,
                kv_transfer_s=one.kv_transfer_s,
                kv_bytes=one.kv_bytes,
            )


NAMES = b'"servers":'
"""Part of every record with names, and rarely of another: quotes in a JSON string are escaped."""


@asynccontextmanager
async def note_named_servers(
    client: Client, journals: Mapping[str, Journal], folder: Path
) -> AsyncIterator[None]:
    """Note in the folder which servers answered the requests of the block, as replies named them.

    `journals` are those of the tasks, by name. Enter it after all other ways to find servers, which
    leave out what is known. The journals are read only if a reply named a server.
    """
    try:
        yield
    finally:
        if client.saw_servers:
            await _append(journals, folder)


async def note_earlier_servers(journals: Mapping[str, Journal], folder: Path) -> None:
    """Note in the folder which servers the replies of earlier sessions named.

    A session that was killed did not note them.
    """
    if any(not journal.empty for journal in journals.values()):
        await _append(journals, folder)


async def _append(journals: Mapping[str, Journal], folder: Path) -> None:
    with suppress(ServeEvalError, OSError):  # Attribution is optional.
        lines = await asyncio.to_thread(lambda: list(_lines(journals, read_known(folder))))
        if lines:
            append_traces(folder, lines)


def _lines(journals: Mapping[str, Journal], known: set[tuple[str, str, float]]) -> Iterator[Served]:
    for one in list_last_attempts(journals, NAMES):
        servers, timing = one.attempt.servers, one.attempt.timing
        if servers is not None and one.key not in known:
            yield Served(
                task=one.task,
                id=one.sample_id,
                started_s=one.attempt.start_s,
                context=servers.context,
                generation=servers.generation,
                how=HEADERS,
                kv_transfer_s=None if timing is None else timing.kv_transfer_s,
            )
