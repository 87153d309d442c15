"""Main's metrics of each request: header fields or an event after [DONE], file lines, traces.

Written from the public code of perf_metrics.py and request_trace.py. A worker's fields begin with
`server`; the orchestrator calls them `ctx` and `gen`, and adds its own. A file is created with its
first line. Each batch of lines is appended in one write to a file that is closed afterwards.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

RETURN = "X-TRTLLM-return-metrics"
TIMING, STAMPS = "Server-Timing", "X-TRTLLM-Start-End-Time"
EVENT = "trtllm.perf_metrics"
TRACE_VARIABLE = "TRTLLM_REQUEST_TRACE_DIR"
DONE = b"data: [DONE]\n\n"
MOST_WAITING, BATCH = 1024, 64
"""Lines that may wait to be written (further ones are lost), and lines per write."""
_STAMPS = {"start": "arrival_time", "end": "last_token_time"}
_KV_STAMPS = {"kv-start": "kv_cache_transfer_start", "kv-end": "kv_cache_transfer_end"}
"""The real names are unknown: newer versions pass these times on, older ones do not."""
_SPANS = {
    "queue": ("arrival_time", "first_scheduled_time"),
    "ttft": ("arrival_time", "first_token_time"),
    "e2e": ("arrival_time", "last_token_time"),
    "kv_transfer": ("kv_cache_transfer_start", "kv_cache_transfer_end"),
}
_OWN_SPANS = {
    "queue": ("server_arrival_time", "ctx_dispatch_time"),
    "ttft": ("server_arrival_time", "server_first_token_time"),
}


def wants_metrics(headers: Mapping[str, str]) -> bool:
    """Return True if the request asks for metrics."""
    return headers.get(RETURN, "").strip() == "1"


def fields(phase: str, timing: Mapping[str, Any]) -> dict[str, str]:
    """Return the header fields of a phase."""
    stamps, spans = [], []
    for name, key in {**_STAMPS, **(_KV_STAMPS if phase == "server" else {})}.items():
        if timing.get(key) is not None:
            stamps.append(f"{phase}-{name};ts={timing[key]:.9f}")
    for name, (start, end) in (_OWN_SPANS if phase == "disagg" else _SPANS).items():
        if timing.get(start) is not None and timing.get(end) is not None:
            spans.append(f"{phase}_{name};dur={1000 * (timing[end] - timing[start]):.6f}")
    return {name: ", ".join(items) for name, items in ((TIMING, spans), (STAMPS, stamps)) if items}


def event(told: Mapping[str, str]) -> bytes:
    """Return the event that follows [DONE] in a stream."""
    return (
        f"event: {EVENT}\ndata: {json.dumps(dict(told), separators=(',', ':'))}\n\n".encode()
        if told
        else b""
    )


class Stripped:
    """Removes the event of a worker from its stream."""

    def __init__(self) -> None:
        self._seen, self.behind = b"", b""
        self._done = False

    def feed(self, part: bytes) -> bytes:
        """Return the part of the data that the client receives."""
        if self._done:
            return self._beyond(part)
        both = self._seen + part
        at = both.find(DONE)
        if at < 0:
            self._seen = both[-len(DONE) + 1 :]
            return part
        self._done, tail = True, both[at + len(DONE) :]
        return (part[: len(part) - len(tail)] if tail else part) + self._beyond(tail)

    def _beyond(self, tail: bytes) -> bytes:
        """Keep the event back, and return a second [DONE], which follows an error."""
        tail = self.behind + tail
        at = tail.find(b"event:")
        kept = tail if at < 0 else tail[:at]
        if at < 0 and DONE not in kept:
            self.behind = tail
            return b""
        self.behind = b"" if at < 0 else tail[at:]
        return kept

    def read_fields(self) -> dict[str, str]:
        """Return the fields of the event."""
        data = [line[6:] for line in self.behind.splitlines() if line.startswith(b"data: ")]
        return dict(json.loads(data[0])) if data else {}


class Told:
    """The facts that the orchestrator collects about one request."""

    def __init__(self, arrived: float) -> None:
        self.arrived = arrived
        self.context = self.generation = ""
        self.number: int | None = None
        self.dispatched: float | None = None
        self.first_token: float | None = None
        self.finished: float | None = None
        self._legs: dict[str, dict[str, str]] = {}

    def hear(self, role: str, url: str, headers: Mapping[str, str]) -> None:
        """Record what a worker reported about its leg, ctx or gen."""
        if role == "ctx":
            self.context = url
        else:
            self.generation, self.first_token = url, self.first_token or time.monotonic()
        self._legs[role] = {
            name: headers[name].replace("server_", f"{role}_").replace("server-", f"{role}-")
            for name in (TIMING, STAMPS)
            if name in headers
        }

    def finish(self) -> None:
        self.finished = time.monotonic()

    def fields(self) -> dict[str, str]:
        """Return the fields for the client; none unless the request was completed."""
        if self.finished is None:
            return {}
        timing = {
            "arrival_time": self.arrived,
            "last_token_time": self.finished,
            "server_arrival_time": self.arrived,
        }
        timing |= {"ctx_dispatch_time": self.dispatched} if self.dispatched else {}
        timing |= {"server_first_token_time": self.first_token} if self.first_token else {}
        parts = [fields("disagg", timing), *self._legs.values()]
        joined = {
            name: ", ".join(part[name] for part in parts if name in part)
            for name in (TIMING, STAMPS)
        }
        return {name: value for name, value in joined.items() if value}

    def line(self) -> dict[str, Any]:
        """Return the request's line in the file."""
        one: dict[str, Any] = {
            "ctx_server": self.context,
            "gen_server": self.generation,
            "disagg_server_arrival_time": self.arrived,
            "disagg_ctx_dispatch_time": self.dispatched,
            "disagg_server_first_token_time": self.first_token,
            "status": "complete",
        }
        for role, told in self._legs.items():
            if timing := _timing(role, told):
                metrics = {"timing_metrics": timing}
                one[f"{role}_perf_metrics"] = {"request_id": self.number, "perf_metrics": metrics}
        return one if self.number is None else {**one, "disagg_request_id": self.number}


def _timing(role: str, told: Mapping[str, str]) -> dict[str, float]:
    """Return the times of a leg that its fields contain."""
    found: dict[str, float] = {}
    for item in told.get(STAMPS, "").split(", "):
        name, _, value = item.partition(";ts=")
        if key := {**_STAMPS, **_KV_STAMPS}.get(name.removeprefix(f"{role}-")):
            found[key] = float(value)
    for item in told.get(TIMING, "").split(", "):
        name, _, value = item.partition(";dur=")
        key = {f"{role}_queue": "first_scheduled_time", f"{role}_ttft": "first_token_time"}.get(
            name
        )
        if key and "arrival_time" in found:
            found[key] = found["arrival_time"] + float(value) / 1000
    return found


class Lines:
    """A file written by a task; lines are lost if more than MOST_WAITING wait."""

    def __init__(self, folder: str | Path | None) -> None:
        self.folder = Path(folder) if folder else None
        self._queue: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue(MOST_WAITING)

    def submit(self, name: str, one: dict[str, Any]) -> None:
        if self.folder is not None and not self._queue.full():
            self._queue.put_nowait((name, one))

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        if self.folder is None:
            yield
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        task = asyncio.create_task(self._write())
        try:
            yield
            await asyncio.wait_for(self._queue.join(), 5.0)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await asyncio.to_thread(self._append, batch)
            for _ in batch:
                self._queue.task_done()

    def _append(self, batch: list[tuple[str, dict[str, Any]]]) -> None:
        assert self.folder is not None
        texts: dict[str, str] = {}
        for name, one in batch:
            texts[name] = (
                f"{texts.get(name, '')}"
                f"{json.dumps(one, separators=(',', ':'), ensure_ascii=False)}\n"
            )
        for name, text in texts.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(text)


class MetricsFile(Lines):
    """The file of `perf_metrics_output_dir`, one per process."""

    def __init__(self, folder: str | None, kind: str) -> None:
        super().__init__(folder)
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        self._name = f"perf_metrics-{kind}-{socket.gethostname()}-{os.getpid()}-{began}.jsonl"

    def note(self, line: dict[str, Any]) -> None:
        self.submit(self._name, line)


class Traces(Lines):
    """The files of TRTLLM_REQUEST_TRACE_DIR, two per hour.

    They contain keys, as in the first versions.
    """

    def note_request(
        self, http: web.Request, arrived: float, raw: bytes
    ) -> Callable[[str, Any, int | None], None]:
        """Note a request, and return a function that notes its end.

        The function takes its status, the answer and the request's number.
        """
        one, now = f"tr_{uuid.uuid4().hex}", datetime.now(UTC).isoformat()
        body: Any = raw.decode(errors="replace")
        with suppress(ValueError):
            body = json.loads(raw)
        request: dict[str, Any] = {
            "event": "request",
            "trace_id": one,
            "session": "_no_session",
            "recorded_at": now,
        }
        request |= {"server_arrival_time": arrived, "route": http.path, "status": "accepted"}
        headers = [[name.lower(), value] for name, value in http.headers.items()]
        self.submit(_trace_name("requests", now), {**request, "headers": headers, "body": body})

        def note_response(status: str, answer: Any, number: int | None) -> None:
            end = datetime.now(UTC).isoformat()
            response: dict[str, Any] = {
                "event": "response",
                "trace_id": one,
                "session": "_no_session",
                "finished_at": end,
            }
            response |= {
                "status": status,
                "client_id": None,
                "disagg_request_id": number,
                "ctx_request_id": None,
            }
            self.submit(_trace_name("responses", end), {**response, "response": answer})

        return note_response


def _trace_name(kind: str, at: str) -> str:
    return f"{at[:13]}/{kind}-{os.getpid()}.jsonl"
