"""Measure when something began and how long it took: dates in UTC, durations by a monotonic
clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Stopwatch:
    """Runs from the moment it is made."""

    def __init__(self) -> None:
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._began = time.monotonic()

    @property
    def wall_s(self) -> float:
        """Seconds since the beginning, to milliseconds."""
        return round(time.monotonic() - self._began, 3)
