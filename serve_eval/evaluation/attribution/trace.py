"""Which servers behind one door answered which request: read beside a run, with no further request
to the model.

The orchestrator of trtllm-serve's 1.2 line tells of its requests at GET /perf_metrics, each once:
whoever reads it takes it away from others. OUT/served.jsonl has a line per request that could be
joined. Nothing of this ever fails a run. What main's orchestrator tells instead is read by
`served_files`.
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
from serve_eval.evaluation.attribution.matching import join
from serve_eval.evaluation.attribution.record import SentAttempt, WorkerRecord, record
from serve_eval.evaluation.storage.journal import Journal
from serve_eval.evaluation.storage.records.traces import Served, append_traces
from serve_eval.plugins.scope import open_scope
from serve_eval.schema import Failure

POLL_S, SLOWEST_POLL_S = 1.0, 10.0
"""Between two readings: while something comes, and at most while nothing does."""
SETTLE_S = 0.5
"""From the last answer until the last reading: records come after answers."""
READ_TIMEOUT_S = 10.0


@asynccontextmanager
async def note_servers(
    client: Client, journals: Mapping[str, Journal], folder: Path
) -> AsyncIterator[None]:
    """Notes in the folder which servers answer the requests of the block, where the front door
    tells it. `journals` are those of the tasks, by name.
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
            with suppress(
                ServeEvalError, OSError
            ):  # it only informs, and what ended the run is to be told
                # in a thread: it takes seconds for ten thousand, and other runs of this process may
                # have requests out
                await asyncio.to_thread(
                    lambda: append_traces(folder, _join(journals, began, records))
                )


class _Door:
    """Read the request records of one front door for all runs that share it.

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
        """Hands what has come since the reading before to all who listen; whether there was any."""
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
    """The front door of a client, with what it had to tell before thrown away. None where it is
    none that tells.
    """
    doors: dict[tuple[object, ...], _Door] = open_scope().shared
    place: tuple[object, ...] = "door", asyncio.get_running_loop(), client.endpoint.base_url
    if place in doors:
        return doors[place]
    if not isinstance(await _get(client, "/cluster_info"), dict):
        # no orchestrator: what /perf_metrics of a single server tells is somebody else's to read
        return None
    if not isinstance(await _get(client, "/perf_metrics"), list):
        return None
    if place not in doors:
        doors[place] = _Door(client, doors, place)
    return doors[place]


async def _get(client: Client, path: str) -> object:
    """The JSON of a route beside those of the base URL, without our secrets: it is written down.
    None where there is none.
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
    journals: Mapping[str, Journal], began: float, records: list[WorkerRecord]
) -> Iterator[Served]:
    """The samples whose last attempt, begun since then, is joined to a record."""
    sent: list[SentAttempt] = []
    last: dict[int, tuple[str, str]] = {}
    for task, journal in journals.items():
        for kept in journal.records():
            result = kept.response or kept.failure
            if result is None or (
                kept.response is not None and kept.response.choice_logprobs is not None
            ):
                continue  # of choices each has requests of its own
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
