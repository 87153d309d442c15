"""Read from the head of a reply for how long a quota is spent. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

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
