"""Note the servers that a router named in the header fields of its replies: exact under any load.

The journals hold these names with the attempts. At the end of a session, OUT/served.jsonl gets a
line for each sample whose last attempt has any. A session that was killed did not write its lines,
so the next one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.errors import ServeEvalError
from serve_eval.evidence.attribution.last_attempts import list_last_attempts, read_known
from serve_eval.evidence.attribution.matching import HEADERS
from serve_eval.storage.journal import Journal
from serve_eval.storage.records.traces import Served, append_traces

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
