"""Measure start and duration: dates in UTC, durations with a monotonic clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Stopwatch:
    """A stopwatch that starts when it is created."""

    def __init__(self) -> None:
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._began = time.monotonic()

    @property
    def wall_s(self) -> float:
        """Seconds since the start, rounded to milliseconds."""
        return round(time.monotonic() - self._began, 3)
