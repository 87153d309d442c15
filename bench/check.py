"""Compare the simulated delays with those that a real process adds under the same load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from costs import IN_FLIGHT, Cost
from kinds import Flow, measure
from queueing import Times, find_delays, percentile
from serving import Mode

POINTS = ((0.2, 0.0), (0.5, 0.0), (0.8, 0.0), (0.5, 0.03))
"""Offered load, and seconds of a step with which the answers leave (0: each for itself)."""
QUIET = 0.02
"""Share of the time for which the process may wait for its core: a run above it is repeated."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A load in reality and as simulated; delays in seconds: median, 90th and 99th percentile.

    `as_busy` is simulated with times that are longer or shorter by one factor, so that the
    simulated process is as busy as the real one: the queue alone, without changes of the cost.
    """

    offered: float
    step_s: float
    rate: float
    busy: float
    simulated_busy: float
    kept_waiting: float
    measured: tuple[float, float, float]
    simulated: tuple[float, float, float]
    as_busy: tuple[float, float, float]


def compare(
    cost: Cost, offered: float, step_s: float, *, tries: int, in_flight: int = IN_FLIGHT, n: int = 0
) -> Compared:
    """Ask a real server so that answers come at a share of what the process takes at most.

    The latencies of the server are exponential. So many requests in flight make the answers arrive
    almost as a Poisson process. Of several tries the one counts in which other processes took the
    core of this one the least.
    """
    latency_s = in_flight * cost.cpu_s / offered
    mode = Mode(
        tokens=cost.kind.mode.tokens,
        stamped=True,
        spread=True,
        latency_ms=1000 * latency_s,
        step_ms=1000 * step_s,
    )
    n = n or max(4 * in_flight, round(4 * offered / cost.cpu_s))
    best: Flow | None = None
    for _ in range(tries):
        flow = measure(cost.kind, in_flight=in_flight, n=n, first=n // 4, mode=mode)
        if best is None or flow.kept_waiting < best.kept_waiting:
            best = flow
        if best.kept_waiting <= QUIET:
            break
    assert best is not None
    rate = 1 / best.wall_s
    delays, busy = _simulate(cost, best.sent_s, 1.0)
    as_busy, _ = _simulate(cost, best.sent_s, best.cpu_s * rate / busy)
    return Compared(
        offered=offered,
        step_s=step_s,
        rate=rate,
        busy=best.cpu_s * rate,
        simulated_busy=busy,
        kept_waiting=best.kept_waiting,
        measured=_three(best.delays_s),
        simulated=_three(delays),
        as_busy=_three(as_busy),
    )


def _simulate(cost: Cost, sent_s: Times, factor: float) -> tuple[Times, float]:
    """Return the delays of answers that arrive when the real server sent its answers.

    The second result is the share of the time in which the simulated process is busy.
    """
    rng, count = np.random.default_rng(2), len(sent_s)
    arrivals = np.sort(sent_s)
    busy, idle = factor * rng.choice(cost.busy, count), factor * rng.choice(cost.idle, count)
    delays = find_delays(arrivals, busy, idle)
    queued = np.append(False, (arrivals + delays)[:-1] > arrivals[1:])
    spent = float(np.where(queued, busy, idle).sum())
    return delays, spent / float(arrivals[-1] - arrivals[0])


def _three(delays: Times) -> tuple[float, float, float]:
    return percentile(delays, 50), percentile(delays, 90), percentile(delays, 99)


def compare_all(cost: Cost, tries: int, tell: Callable[[str], None]) -> list[Compared]:
    """Return the comparison at every point."""
    found = []
    for offered, step_s in POINTS:
        tell(f"check at a load of {offered:.0%}")
        found.append(compare(cost, offered, step_s, tries=tries))
    return found
