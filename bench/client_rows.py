"""Rows of the clients alone: the request phase of one_client.py.

There are rows without and with latency, and for streams.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from answers import CHUNKS
from one_client import ABSENT
from processes import run
from rows import Measured, NotInstalled, NotMeasured, Row, Size
from serving import Mode, Server

AT_ONCE, AFTER_200_MS, SPACED_10_MS = Mode(), Mode(latency_ms=200), Mode(chunk_ms=10)

WHOLE = (
    ("ours", AT_ONCE, 64, 20_000),
    ("aiohttp", AT_ONCE, 64, 20_000),
    ("aiohttp_idiomatic", AT_ONCE, 64, 20_000),
    ("openai_aiohttp", AT_ONCE, 64, 3_000),
    ("openai_async", AT_ONCE, 64, 2_000),
    ("openai_sync", AT_ONCE, 16, 2_000),
    ("ours", AFTER_200_MS, 512, 10_240),
    ("aiohttp", AFTER_200_MS, 512, 10_240),
    ("openai_aiohttp", AFTER_200_MS, 512, 3_072),
    ("openai_async", AFTER_200_MS, 512, 1_536),
    ("ours", AFTER_200_MS, 4096, 24_576),
    ("aiohttp", AFTER_200_MS, 4096, 24_576),
    ("openai_aiohttp", AFTER_200_MS, 4096, 8_192),
)
STREAMED = (
    ("ours", SPACED_10_MS, 128, 256),
    ("aiohttp", SPACED_10_MS, 128, 256),
    ("openai_aiohttp", SPACED_10_MS, 32, 64),
    ("ours", AT_ONCE, 64, 2_000),
    ("aiohttp", AT_ONCE, 64, 2_000),
    ("openai_aiohttp", AT_ONCE, 64, 128),
)


def client_rows(size: Size, scratch: Path) -> list[Row]:
    """Return every client and setting, with at least two requests for each in flight."""
    rows = [_row(*of, chunks=0, size=size) for of in WHOLE]
    return rows + [_row(*of, chunks=CHUNKS, size=size) for of in STREAMED]


def _row(name: str, mode: Mode, in_flight: int, n: int, *, chunks: int, size: Size) -> Row:
    n = size.requests(n, 2 * size.in_flight(in_flight))
    shown = f"{name}, {'streamed' if chunks else 'client alone'}"
    return Row(
        name=shown,
        mode=mode,
        in_flight=in_flight,
        n=n,
        run=_runner(name, size.in_flight(in_flight), n, stream=bool(chunks)),
        chunks=chunks,
    )


def _runner(name: str, in_flight: int, n: int, *, stream: bool) -> Callable[[Server], Measured]:
    script = str(Path(__file__).with_name("one_client.py"))
    arguments = ["--n", str(n), "--concurrency", str(in_flight), *(["--stream"] if stream else [])]

    def measure(server: Server) -> Measured:
        finished = run(
            [sys.executable, script, name, "--base-url", server.base_url, *arguments], limit_s=120
        )
        if finished.last_words.startswith(ABSENT):
            raise NotInstalled(finished.last_words.removeprefix(ABSENT))
        if finished.code:
            raise NotMeasured(finished.last_words)
        told, seen = json.loads(finished.out), server.seen()
        return Measured(
            n=n,
            ok=told["ok"],
            cpu_s=told["cpu_s"],
            wall_s=told["wall_s"],
            peak_rss_mb=told["peak_rss_mb"],
            received=seen.requests,
            at_server=seen.max_in_progress,
        )

    return measure
