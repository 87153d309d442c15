"""Read what a trtllm-serve orchestrator reports about a request in its reply. Pure.

It reports in header fields, or in an event after [DONE] in a stream. Its main line does so if
`return_perf_metrics` is in its file and the request has the header RETURN. The report does not name
a server. The time at which the request arrived there, in nanoseconds, is also in its own records.
"""

from __future__ import annotations

import re

import msgspec

from serve_eval.schema import Endpoint, ServerTiming

RETURN = "X-TRTLLM-return-metrics"
TIMING, STAMPS = "Server-Timing", "X-TRTLLM-Start-End-Time"
MAX_BEHIND = 131072
"""Bytes after [DONE] that are searched for the event; the orchestrator gives it at most 80 KiB."""
_ARRIVAL = re.compile(r"(?:^|[\s,])disagg-start;ts=(\d{1,12}\.\d{1,9})(?=[\s,;]|$)")
_TRANSFER = re.compile(r"(?:^|[\s,])gen_kv_transfer;dur=(\d{1,12}(?:\.\d{1,9})?)(?=[\s,;]|$)")


def is_asked_of(endpoint: Endpoint) -> bool:
    """Return True if the answers of an endpoint should report it."""
    return endpoint.info.perf_metrics is not None


def parse(timing: str | None, stamps: str | None) -> ServerTiming | None:
    """Return the timing in the two fields, or None unless exactly one request arrived."""
    arrivals = set(_ARRIVAL.findall(stamps or ""))
    if len(arrivals) != 1:
        return None
    transfers = _TRANSFER.findall(timing or "")
    return ServerTiming(
        arrival=arrivals.pop(),
        kv_transfer_s=float(transfers[0]) / 1000 if len(transfers) == 1 else None,
    )


class BehindDone:
    """Searches the data lines after [DONE] for the event."""

    def __init__(self) -> None:
        self.open = True
        self.timing: ServerTiming | None = None
        self._bytes = 0

    def count(self, size: int) -> None:
        """Count bytes and stop after MAX_BEHIND."""
        self._bytes += size
        self.open = self.open and self._bytes <= MAX_BEHIND

    def take(self, payload: bytes) -> None:
        """Read a data line, and ignore it if it is not the event."""
        try:
            told = msgspec.json.decode(payload, type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        fields = {name.lower(): value for name, value in told.items() if isinstance(value, str)}
        if STAMPS.lower() in fields:
            self.timing, self.open = (
                parse(fields.get(TIMING.lower()), fields[STAMPS.lower()]),
                False,
            )
