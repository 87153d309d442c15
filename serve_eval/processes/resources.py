"""Prepare this process for many requests in flight, and measure the load of the cores.

If a server shares its cores with another server, or with its client, its answers take as long as
the cores are busy with others. Linux only.
"""

from __future__ import annotations

import resource
import time
from contextlib import suppress
from pathlib import Path

from serve_eval.errors import PlanError

SPARE = 100
"""Descriptors that a run needs for journals, logs, libraries and the event loop."""


def ensure_descriptors(in_flight: int) -> None:
    """Raise the soft limit of the process if needed. Raises PlanError if that is not possible."""
    needed = in_flight + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise PlanError(
            f"concurrency: {in_flight} requests in flight need {needed} open files, but this"
            f" process may only have {hard}",
            hint=(
                f"Raise the limit (ulimit -Hn {needed}), or use --concurrency"
                f" {max(1, hard - SPARE)}."
            ),
        )
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError) as error:
        raise PlanError(
            f"concurrency: {in_flight} requests in flight need {needed} open files, but this"
            f" process may only have {soft}",
            hint=(
                f"Raise the limit (ulimit -n {needed}), or use --concurrency"
                f" {max(1, soft - SPARE)}."
            ),
        ) from error


BUSY = 0.9
"""Share of the time from which the cores of this machine count as busy throughout."""
STAT = Path("/proc/stat")
QUOTA, USAGE = Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu.stat")
IDLE = (3, 4)
"""Places of the idle times, idle and iowait, among those of all cores in /proc/stat (proc(5))."""
TIMES = 8
"""Times of all cores that add up: the later ones, of guests, are part of the first."""


def is_busy(share: float | None) -> bool:
    """Return True if a share of busy time makes longer answers no evidence against a server."""
    return share is not None and share >= BUSY


def describe_busy(share: float) -> str:
    """Return the end of a line about a longer time that the cores' load may explain."""
    return (
        f"while the cores of this machine were busy for {100 * share:.0f} % of the time: whatever"
        " shares them waits, so that this says nothing of"
    )


class CoreLoad:
    """A measurement that begins when it is made."""

    def __init__(self) -> None:
        self._cores, self._own, self._began = _read_cores(), _read_usage_s(), time.monotonic()

    def share(self) -> float | None:
        """Return the share of the time since then for which the cores were busy; None if unknown.

        In a container with a quota of CPU time, the share of its quota counts if it is larger.
        """
        shares = [one for one in (self._of_machine(), self._of_quota()) if one is not None]
        return min(1.0, max(shares)) if shares else None

    def _of_machine(self) -> float | None:
        now = _read_cores()
        if self._cores is None or now is None or now[1] <= self._cores[1]:
            return None
        return (now[0] - self._cores[0]) / (now[1] - self._cores[1])

    def _of_quota(self) -> float | None:
        used, quota = _read_usage_s(), _read_quota()
        passed_s = time.monotonic() - self._began
        if self._own is None or used is None or quota is None or passed_s <= 0:
            return None
        return (used - self._own) / (quota * passed_s)


def _read_cores() -> tuple[int, int] | None:
    """Return the busy time and the whole time of all cores, in ticks."""
    with suppress(OSError, ValueError, IndexError):
        times = [int(word) for word in STAT.read_text().split("\n")[0].split()[1:][:TIMES]]
        return sum(times) - sum(times[place] for place in IDLE), sum(times)
    return None


def _read_usage_s() -> float | None:
    """Return the seconds of CPU time that our cgroup has used (cgroup v2)."""
    with suppress(OSError, ValueError, IndexError):
        words = USAGE.read_text().split()
        return int(words[words.index("usage_usec") + 1]) / 1e6
    return None


def _read_quota() -> float | None:
    """Return the cores that our cgroup may use; None without a limit."""
    with suppress(OSError, ValueError, IndexError, ZeroDivisionError):
        most, period = QUOTA.read_text().split()[:2]
        return int(most) / int(period)
    return None
