"""What an orchestrator of trtllm-serve tells of a request in the answer to it: in header fields, or
in an event that a stream has behind [DONE]. Pure.

Its main line does so where `return_perf_metrics` stands in its file and the request has the header
RETURN. Nothing of that names a server. The time at which the request arrived there, in nanoseconds,
stands in its own records too.
"""

from __future__ import annotations

import re

import msgspec

from serve_eval.schema import Endpoint, ServerTiming

RETURN = "X-TRTLLM-return-metrics"
TIMING, STAMPS = "Server-Timing", "X-TRTLLM-Start-End-Time"
MAX_BEHIND = 131072
"""Bytes behind [DONE] in which the event is looked for; the orchestrator gives it 80 KiB at
most."""
_ARRIVAL = re.compile(r"(?:^|[\s,])disagg-start;ts=(\d{1,12}\.\d{1,9})(?=[\s,;]|$)")
_TRANSFER = re.compile(r"(?:^|[\s,])gen_kv_transfer;dur=(\d{1,12}(?:\.\d{1,9})?)(?=[\s,;]|$)")


def is_asked_of(endpoint: Endpoint) -> bool:
    """Return whether the answers of an endpoint are to tell it."""
    return endpoint.info.perf_metrics is not None


def parse(timing: str | None, stamps: str | None) -> ServerTiming | None:
    """Read the two fields. None without the arrival of exactly one request."""
    arrivals = set(_ARRIVAL.findall(stamps or ""))
    if len(arrivals) != 1:
        return None
    transfers = _TRANSFER.findall(timing or "")
    return ServerTiming(
        arrival=arrivals.pop(),
        kv_transfer_s=float(transfers[0]) / 1000 if len(transfers) == 1 else None,
    )


class BehindDone:
    """Looks for the event among the data lines that come behind [DONE]."""

    def __init__(self) -> None:
        self.open = True
        self.timing: ServerTiming | None = None
        self._bytes = 0

    def count(self, size: int) -> None:
        """Note how many bytes have come, of which only so many are read."""
        self._bytes += size
        self.open = self.open and self._bytes <= MAX_BEHIND

    def take(self, payload: bytes) -> None:
        """Read a data line. What is no such event is passed over."""
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
