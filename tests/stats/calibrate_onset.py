"""Measure how often a healthy run is said to degrade, and how soon a degrading one is noticed.

Covers alarms at the end and during the run, as Markdown tables. Part of `make calibrate`; seeded,
printed, never asserted.
"""

import time
from array import array

import numpy

from serve_eval.evaluation.engine.lane import arrange
from serve_eval.evaluation.results.degradation import ALPHA, VALUE, Course, degradations
from serve_eval.plan.chosen_samples import ShardPart, list_places
from serve_eval.schema import Metric, Sample, Shard
from serve_eval.stats.onset import FIRST, limit, onset
from serve_eval.verdicts.below_reference import estimate_expected
from tests.stats.simulation import interval

LEVEL = ALPHA[VALUE]
BAD = (0.002, 0.005, 0.01, 0.02, 0.1, 0.3, 0.6)
HEALTHY = {100: 5000, 400: 2000, 1319: 1000, 4096: 400, 14042: 100}
"""Simulated runs by their number of requests."""
FALLS = ((0.95, 0.5), (0.9, 0.5), (0.8, 0.5), (0.8, 0.6))
RUNS = 500
REFERENCES = {"": 0, "one run": 1, "three runs": 3}
"""Number of reference runs by name in the table; without a reference, only scores count."""
UNSTEADY = 0.1
"""Share of the prompts with a random chance of a right answer: two runs disagree on 3.4 % of all.
"""
LOOKED_AT = {100: 2000, 400: 1200, 1319: 500}
"""Runs whose measures are all checked as they go on, by number of requests."""
IN_FLIGHT, EVERY = 64, 20


def tables():
    """Return all tables."""
    return "\n".join([*_healthy(), "", *_on_the_way(), "", *_falling()])


def _healthy():
    lines = [
        (
            f"| requests | limit | {' | '.join(f'{100 * share:g}% bad' for share in BAD)} | graded"
            " scores |"
        ),
        "|---" * (3 + len(BAD)) + "|",
    ]
    for n, runs in HEALTHY.items():
        cells = []
        for share in BAD:
            random = numpy.random.default_rng([n, round(1000 * share)])
            found = sum(onset(random.random(n) < share, LEVEL) is not None for _ in range(runs))
            cells.append(_alone(found, runs))
        random = numpy.random.default_rng(n)
        found = sum(onset(_below_median(random.random(n)), LEVEL) is not None for _ in range(runs))
        lines.append(
            f"| {n} | {limit(n, LEVEL):.2f} | {' | '.join(cells)} | {_alone(found, runs)} |"
        )
    return lines


def _alone(hits, runs):
    """Format percent, marked if the exact interval is above the level of the value alone."""
    told = f"{100 * hits / runs:.2f}"
    return told if interval(hits, runs)[0] <= LEVEL else f"**{told}**: beyond the level"


def _below_median(scores):
    return scores < numpy.median(scores[:FIRST])


def _on_the_way():
    """Check all measures of healthy runs together.

    Hard questions get long answers, which are wrong more often.
    """
    lines = [
        (
            "| requests | accused in the end (95 %) | with a reference (95 %) | on the way | by"
            " order of completion |"
        ),
        "|---|---|---|---|---|",
    ]
    for n, runs in LOOKED_AT.items():
        random = numpy.random.default_rng([n, 1])
        at_end = against = before = by_end = 0
        for _ in range(runs):
            course, known = _run(random, n)
            at_end += bool(degradations(course, Metric(), n))
            against += bool(degradations(course, Metric(), n, known))
            before += any(
                degradations(_first(course, k), Metric(), n)
                for k in _prefixes(course)
                if k >= min(FIRST, n)
            )
            by_end += bool(
                degradations(_in_order(course, numpy.argsort(course.ended_s)), Metric(), n)
            )
        last = " | ".join(f"{100 * count / runs:.2f}" for count in (before, by_end))
        lines.append(f"| {n} | {_share(at_end, runs)} | {_share(against, runs)} | {last} |")
    return lines


def _share(hits, runs):
    """Format percent with the exact interval.

    It is marked if the interval is above the level of all measures together.
    """
    low, high = interval(hits, runs)
    told = f"{100 * hits / runs:.2f} ({100 * low:.2g} to {100 * high:.2g})"
    return told if low <= sum(ALPHA.values()) else f"**{told}**: beyond the level"


def _run(random, n):
    """Return a healthy run with IN_FLIGHT requests at a time, and the expected scores.

    Each request takes as long as its answer. The expected scores come from three earlier runs.
    """
    hard = random.random(n)
    earlier = [(random.random(n) >= hard / 2).astype(float).tolist() for _ in range(3)]
    lengths = numpy.exp(3 + 3 * hard + 0.3 * random.standard_normal(n)).astype(numpy.intc)
    free, starts = numpy.zeros(IN_FLIGHT), numpy.zeros(n)
    for i in range(n):
        slot = int(free.argmin())
        starts[i] = free[slot]
        free[slot] += lengths[i]
    values = (random.random(n) >= hard / 2).astype(float)
    empty, circling = (
        bytes((random.random(n) < share).astype(numpy.uint8)) for share in (0.01, 0.02)
    )
    course = Course(
        started_s=array("d", starts),
        ended_s=array("d", starts + lengths),
        values=array("d", values),
        lengths=array("i", lengths),
        empty=empty,
        repetitive=circling,
        places=array("q", range(n)),
    )
    return course, estimate_expected(earlier, lo=0.0, hi=1.0, higher_is_better=True)


def _prefixes(course):
    """Return the lengths of the finished prefix, after every EVERY finished requests."""
    ended = numpy.array(course.ended_s)
    looks = numpy.sort(ended)[EVERY - 1 : -1 : EVERY]
    return sorted({int(numpy.argmax(ended > at)) for at in looks})


def _first(course, k):
    return _in_order(course, numpy.arange(k))


def _in_order(course, order):
    places = order.tolist()
    return Course(
        started_s=array("d", (course.started_s[i] for i in places)),
        ended_s=array("d", (course.ended_s[i] for i in places)),
        values=array("d", (course.values[i] for i in places)),
        lengths=array("i", (course.lengths[i] for i in places)),
        empty=bytes(course.empty[i] for i in places),
        repetitive=bytes(course.repetitive[i] for i in places),
        places=array("q", (course.places[i] for i in places)),
    )


def _falling():
    lines = [
        (
            "| falls at 100 of 400 from, to | reference | noticed within 40 | noticed | median"
            " requests until then |"
        ),
        "|---|---|---|---|---|",
    ]
    for before, after in FALLS:
        for name, runs in REFERENCES.items():
            delays = [
                delay
                for seed in range(RUNS)
                if (delay := _delay(seed, before, after, runs)) is not None
            ]
            soon = sum(delay <= 40 for delay in delays)
            shown = (
                f"{100 * soon / RUNS:.1f} | {100 * len(delays) / RUNS:.1f} |"
                f" {numpy.median(delays):.0f}"
            )
            lines.append(f"| {before:.0%}, {after:.0%} | {name or 'none'} | {shown} |")
    return lines


def _delay(seed, before, after, runs):
    """Return the requests until a fall at request 100 of 400 is noticed; None if it is not."""
    random = numpy.random.default_rng(seed)
    steady = (before - UNSTEADY / 2) / (
        1 - UNSTEADY
    )  # so that the share of right answers is `before`
    chance = (random.random(400) < steady).astype(float)
    unsteady = random.random(400) < UNSTEADY
    chance[unsteady] = random.random(int(unsteady.sum()))
    right = random.random(400) < chance
    right[100:] &= random.random(300) < after / before
    if runs:
        earlier = [(random.random(400) < chance).astype(float).tolist() for _ in range(runs)]
        known = estimate_expected(earlier, lo=0.0, hi=1.0, higher_is_better=True)
        bad, kept = known.among(range(400), right.astype(float))
        planned = known.count_looks(400)
    else:
        bad, kept, planned = ~right, numpy.arange(400), 400
    one = onset(bad, LEVEL, planned)
    if one is None or (noticed := int(kept[one.noticed - 1]) + 1) <= 100:
        return None
    return noticed - 100


def main():
    print(tables())


SAMPLES = 1319
COUNTS = (4, 16)
SHARDS_BAD = (0.1, 0.4, 0.7, 0.9)
SHARDS_RUNS = 1000
SHARDS_FALLS = ((0.95, 0.5), (0.9, 0.6), (0.8, 0.6))
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


def main_shards():
    began = time.monotonic()
    print("\n".join([*_healthy_shards(), "", *_falling_shards()]))
    print(f"\n{time.monotonic() - began:.0f} s, 1 of 2 cores")


def _healthy_shards():
    lines = ["| shards | wrong answers | any shard (95 %) | merged run (95 %) |", "|---" * 4 + "|"]
    for count in COUNTS:
        run = ShardedRun(count)
        for bad in SHARDS_BAD:
            random = numpy.random.default_rng([count, round(100 * bad)])
            shards = whole = 0
            for seed in range(SHARDS_RUNS):
                right = random.random(SAMPLES) >= bad
                shards += _any_alarms(run, seed, right)
                whole += _alarms(right[run.order(seed)])
            lines.append(
                f"| {count} | {bad:.0%} | {_share_shards(shards, SHARDS_RUNS)}"
                f" | {_share_shards(whole, SHARDS_RUNS)} |"
            )
    return lines


def _any_alarms(run, seed, right):
    return any(_alarms(right[order], run.count) for order in run.orders(seed))


def _falling_shards():
    lines = [
        "| shards | right answers from, to | any shard, side by side | merged, side by side"
        " | any shard, one after another | merged, one after another |",
        "|---" * 6 + "|",
    ]
    for count in COUNTS:
        run = ShardedRun(count)
        for before, after in SHARDS_FALLS:
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


def _share_shards(found, runs):
    low, high = interval(found, runs)
    return f"{100 * found / runs:.2f} ({100 * low:.2g} to {100 * high:.2g})"
