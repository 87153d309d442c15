"""Read the servers, quotas and times that the head of a reply names. Pure.

Any router in front of context and generation servers can send them, with answers and with errors.

It reports in header fields, or in an event after [DONE] in a stream. Its main line does so if
`return_perf_metrics` is in its file and the request has the header RETURN. The report does not name
a server. The time at which the request arrived there, in nanoseconds, is also in its own records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from serve_eval.schema import AnsweringServers, Endpoint, ServerTiming

CONTEXT_SERVER, GENERATION_SERVER = "X-Context-Server", "X-Generation-Server"
CONTEXT_FIELD, GENERATION_FIELD = (
    name.lower().encode() for name in (CONTEXT_SERVER, GENERATION_SERVER)
)
SERVER_FIELDS = frozenset((CONTEXT_FIELD, GENERATION_FIELD))
"""The names of both fields, in lower case. A transport reads a repeated field as an empty one."""
_NAME = re.compile(r"[ -+\--~]{1,200}")
"""Printable ASCII without a comma: a proxy may join the values of a repeated field by commas."""


def read_servers(head: Mapping[bytes, str]) -> AnsweringServers | None:
    """Return the servers that a head names, or None if it names neither."""
    context, generation = _name(head.get(CONTEXT_FIELD)), _name(head.get(GENERATION_FIELD))
    if context is None and generation is None:
        return None
    return AnsweringServers(context=context, generation=generation)


def _name(value: str | None) -> str | None:
    name = (value or "").strip(" \t")
    return name if _NAME.fullmatch(name) else None


RETRY_AFTER, RETRY_AFTER_MS = b"retry-after", b"retry-after-ms"
_QUOTAS = (
    (b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests"),
    (b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens"),
    (b"x-ratelimit-remaining", b"x-ratelimit-reset"),
    (b"ratelimit-remaining", b"ratelimit-reset"),
)
"""Pairs of header fields: what is left, and when it is filled again. OpenAI's API and those that
follow it have the first two; the others are of gateways and of the IETF's draft."""
REMAINING = frozenset(remaining for remaining, _ in _QUOTAS)
FIELDS = frozenset(name for pair in _QUOTAS for name in pair) | {RETRY_AFTER_MS}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_EPOCH_S, _EPOCH_MS = 1e9, 1e12
"""Least numbers that are a time of day, in seconds and in milliseconds since 1970."""


def read_pause(status: int, head: Mapping[bytes, str], now: datetime | None = None) -> float | None:
    """Return the seconds for which the server wants no further request; None if it names none.

    A 429 names them as Retry-After, in seconds or as a date, or by the quota that is spent. Any
    other reply may say that it was the last one of a quota.
    """
    at = now or datetime.now(UTC)
    if status == 429:
        if (after := read_retry_after(head.get(RETRY_AFTER), at)) is not None:
            return after
        if (pause := head.get(RETRY_AFTER_MS)) is not None and _NUMBER.fullmatch(pause.strip()):
            return float(pause) / 1000.0
    spent = [
        _read_reset(head[reset], at)
        for remaining, reset in _QUOTAS
        if reset in head and _is_spent(head.get(remaining))
    ]
    known = [seconds for seconds in spent if seconds is not None]
    return max(known) if known else None


def read_retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds of a Retry-After, not negative, or None if it cannot be read."""
    if not value:
        return None
    try:
        if _NUMBER.fullmatch(value.strip()):
            return float(value)
        when = parsedate_to_datetime(value)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max((when - now).total_seconds(), 0.0)
    except (ValueError, OverflowError, TypeError):
        return None


def _is_spent(remaining: str | None) -> bool:
    return remaining is not None and remaining.strip() in ("0", "0.0")


def _read_reset(value: str, now: datetime) -> float | None:
    """Return the seconds of a reset: "6m0s", "12ms", seconds, or a time since 1970."""
    value = value.strip()
    if _NUMBER.fullmatch(value):
        number = float(value)
        if number >= _EPOCH_S:
            number = number / (1000.0 if number >= _EPOCH_MS else 1.0) - now.timestamp()
        return max(number, 0.0)
    parts = _PART.findall(value)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != value:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


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
