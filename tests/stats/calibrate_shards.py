"""Measure what the alarm of a run in shards promises: false alarms, and declines that it finds.

Prints Markdown tables. Part of `make calibrate`; seeded, printed, never asserted.
"""

import time
from array import array

import numpy

from serve_eval.evaluation.engine.lane import arrange
from serve_eval.evaluation.results.degradation import Course, degradations
from serve_eval.plan.chosen_samples import ShardPart, list_places
from serve_eval.schema import Metric, Sample, Shard
from tests.stats.simulation import interval

SAMPLES = 1319
COUNTS = (4, 16)
BAD = (0.1, 0.4, 0.7, 0.9)
RUNS = 1000
FALLS = ((0.95, 0.5), (0.9, 0.6), (0.8, 0.6))
FALLING_RUNS = 300
FALLS_AT = 0.25
"""Share of the time of a run after which its answers get worse."""


class ShardedRun:
    """A run of SAMPLES in `count` shards: the samples of each, and the random orders of a seed."""

    def __init__(self, count):
        self.count = count
        self.samples = [Sample(id=f"sample-{i}", prompt="", target="") for i in range(SAMPLES)]
        self.parts = [list_places(self.samples, Shard(k, count)) for k in range(1, count + 1)]

    def orders(self, seed):
        """Return the samples of each shard in the order of their starts."""
        found = []
        for part in self.parts:
            own = [self.samples[i] for i in part]
            order = arrange(own, range(len(own)), "random", str(seed), ShardPart(part, SAMPLES))
            found.append(array("q", (part[i] for i in order)))
        return found

    def order(self, seed):
        """Return all samples in the order of the merged run."""
        return arrange(self.samples, range(SAMPLES), "random", str(seed))


def main():
    began = time.monotonic()
    print("\n".join([*_healthy(), "", *_falling()]))
    print(f"\n{time.monotonic() - began:.0f} s, 1 of 2 cores")


def _healthy():
    lines = ["| shards | wrong answers | any shard (95 %) | merged run (95 %) |", "|---" * 4 + "|"]
    for count in COUNTS:
        run = ShardedRun(count)
        for bad in BAD:
            random = numpy.random.default_rng([count, round(100 * bad)])
            shards = whole = 0
            for seed in range(RUNS):
                right = random.random(SAMPLES) >= bad
                shards += _any_alarms(run, seed, right)
                whole += _alarms(right[run.order(seed)])
            lines.append(
                f"| {count} | {bad:.0%} | {_share(shards, RUNS)} | {_share(whole, RUNS)} |"
            )
    return lines


def _any_alarms(run, seed, right):
    return any(_alarms(right[order], run.count) for order in run.orders(seed))


def _falling():
    lines = [
        "| shards | right answers from, to | any shard, side by side | merged, side by side"
        " | any shard, one after another | merged, one after another |",
        "|---" * 6 + "|",
    ]
    for count in COUNTS:
        run = ShardedRun(count)
        for before, after in FALLS:
            random = numpy.random.default_rng([count, round(100 * before), round(100 * after)])
            found = numpy.zeros(4, dtype=int)
            for seed in range(FALLING_RUNS):
                orders, whole = run.orders(seed), run.order(seed)
                for at, times in enumerate((_side_by_side, _one_after_another)):
                    late = times(orders) >= FALLS_AT
                    right = random.random(SAMPLES) < numpy.where(late, after, before)
                    found[2 * at] += any(_alarms(right[order], count) for order in orders)
                    found[2 * at + 1] += _alarms(right[whole])
            cells = " | ".join(f"{one / FALLING_RUNS:.1%}" for one in found)
            lines.append(f"| {count} | {before:.0%}, {after:.0%} | {cells} |")
    return lines


def _side_by_side(orders):
    """Return the time of each sample, from 0 to 1, if the shards run at the same time."""
    return _times(orders, lambda shard, rank, size: rank / size)


def _one_after_another(orders):
    return _times(orders, lambda shard, rank, size: (shard + rank / size) / len(orders))


def _times(orders, time_of):
    times = numpy.zeros(SAMPLES)
    for shard, order in enumerate(orders):
        for rank, place in enumerate(order):
            times[place] = time_of(shard, rank, len(order))
    return times


def _alarms(right, shards=1):
    """Return True if the alarm is raised for answers in the order of their starts."""
    n = len(right)
    times = array("d", range(n))
    course = Course(
        started_s=times,
        ended_s=times,
        values=array("d", right.astype(float).tobytes()),
        lengths=array("i", [5] * n),
        empty=bytes(n),
        repetitive=bytes(n),
    )
    return bool(degradations(course, Metric(), n, shards=shards))


def _share(found, runs):
    low, high = interval(found, runs)
    return f"{100 * found / runs:.2f} ({100 * low:.2g} to {100 * high:.2g})"


if __name__ == "__main__":
    main()
