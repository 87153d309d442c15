"""Queue of answers that one process handles one after another. Pure: numbers in, numbers out.

Answers arrive, wait while the process is busy, and are done after their service time. The delay of
an answer is the time between its arrival and its end. Times are in seconds, rates per second.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


def draw_poisson(rate: float, count: int, rng: np.random.Generator) -> Times:
    """Return `count` arrival times of a Poisson process."""
    return np.cumsum(rng.exponential(1 / rate, count))


def draw_bursts(
    rate: float, count: int, rng: np.random.Generator, *, servers: int, step_s: float
) -> Times:
    """Return about `count` arrival times of answers that leave with the steps of their servers.

    Each server makes a step every `step_s`, at a phase of its own. All answers of a step arrive at
    once. Their number has a Poisson distribution. `rate` is that of all servers together.
    """
    steps = max(1, round(count / (rate * step_s)))
    phases = rng.uniform(0, step_s, servers)
    sizes = rng.poisson(rate * step_s / servers, (steps, servers))
    times = np.arange(steps)[:, None] * step_s + phases[None, :]
    arrivals = np.repeat(times.ravel(), sizes.ravel())
    arrivals.sort()
    return arrivals


def find_ends(arrivals: Times, services: Times) -> Times:
    """Return when each answer is done, for service times that do not depend on the queue.

    An answer begins when it has arrived and the one before it is done (Lindley 1952).
    """
    spent = np.cumsum(services)
    ends: Times = spent + np.maximum.accumulate(arrivals - (spent - services))
    return ends


def find_delays(arrivals: Times, busy: Times, idle: Times) -> Times:
    """Return the delay of each answer.

    An answer that finds the process idle takes its time of `idle`, since the process must wake up
    for it. Any other takes its time of `busy`.
    """
    delays, end = [], -math.inf
    for at, queued, woken in zip(arrivals.tolist(), busy.tolist(), idle.tolist(), strict=True):
        end = end + queued if end > at else at + woken
        delays.append(end - at)
    return np.array(delays)


def split(arrivals: Times, shards: int, rng: np.random.Generator) -> list[Times]:
    """Return the arrivals of each shard; every answer belongs to a random one."""
    places = rng.integers(0, shards, len(arrivals))
    return [arrivals[places == shard] for shard in range(shards)]


def find_length(arrivals: Times, observed: Times, shards: int, rng: np.random.Generator) -> float:
    """Return when the last answer of all shards is done, with service times drawn from observed."""
    parts = [part for part in split(arrivals, shards, rng) if len(part)]
    return max(float(find_ends(part, rng.choice(observed, len(part)))[-1]) for part in parts)


def shards_needed(rate: float, mean: float, most: float) -> int:
    """Return the least number of processes that are busy for at most the share `most`."""
    return max(1, math.ceil(rate * mean / most - 1e-9))


# --- formulas, which the simulation must match


def mean_wait(rate: float, mean: float, second: float) -> float:
    """Return the mean wait before service in M/G/1, by Pollaczek and Khinchine.

    `second` is the second moment of the service time.
    """
    return rate * second / (2 * (1 - rate * mean))


def mean_wait_after_idle(
    rate: float, busy: tuple[float, float], idle: tuple[float, float]
) -> float:
    """Return the mean wait in M/G/1 with another service time after an idle phase (Welch 1964).

    `busy` and `idle` are mean and second moment.
    """
    (mean, second), (first, first_second) = busy, idle
    free = 1 - rate * mean
    return rate * second / (2 * free) + rate * (first_second - second) / (2 * (free + rate * first))


def mean_wait_of_batches(rate: float, mean: float, second: float, size: float) -> float:
    """Return the mean wait of an answer if batches of a Poisson-distributed size arrive.

    `rate` is that of answers, `size` the mean of a batch. A batch is one customer of M/G/1. Within
    it an answer waits for those before it, size / 2 on average: E[N(N-1)] / (2 E[N]).
    """
    whole = size * mean
    whole_second = size * second + size**2 * mean**2
    return mean_wait(rate / size, whole, whole_second) + size * mean / 2


def exponential_delay(rate: float, mean: float, share: float) -> float:
    """Return the delay that the `share` of answers does not exceed, in M/M/1."""
    return -math.log(1 - share) * mean / (1 - rate * mean)


def percentile(values: Any, percent: float) -> float:
    """Return a percentile of numbers."""
    return float(np.percentile(np.asarray(values, dtype=np.float64), percent))
