"""How often a healthy run is said to degrade, in the end and while it goes on, and how soon one that does is noticed,
as Markdown tables: part of `make calibrate`. Printed, never asserted; seeded."""

from __future__ import annotations

from array import array

import numpy
from numpy.typing import NDArray

from serve_eval.degradation import ALPHA, VALUE, Course, degradations
from serve_eval.schema import Metric
from serve_eval.stats.onset import FIRST, limit, onset

LEVEL = ALPHA[VALUE]
BAD = (0.02, 0.1, 0.3, 0.6)
HEALTHY = {100: 10_000, 400: 4000, 1319: 2000, 4096: 1000, 14042: 300}
"""Runs simulated by the number of their requests."""
FALLS = ((0.95, 0.5), (0.9, 0.5), (0.8, 0.5), (0.8, 0.6))
RUNS = 500
LOOKED_AT = {100: 2000, 400: 1000, 1319: 300}
"""Runs of which all measures are looked at as they go on."""
IN_FLIGHT, EVERY = 64, 20


def tables() -> str:
    """All tables."""
    return "\n".join([*_healthy(), "", *_on_the_way(), "", *_falling()])


def _healthy() -> list[str]:
    lines = [
        f"| requests | limit | {' | '.join(f'{share:.0%} wrong' for share in BAD)} | graded scores |",
        "|---" * (3 + len(BAD)) + "|",
    ]
    for n, runs in HEALTHY.items():
        cells = []
        for share in BAD:
            random = numpy.random.default_rng([n, round(100 * share)])
            found = sum(onset(random.random(n) < share, LEVEL) is not None for _ in range(runs))
            cells.append(f"{100 * found / runs:.2f}")
        random = numpy.random.default_rng(n)
        found = sum(onset(_below_median(random.random(n)), LEVEL) is not None for _ in range(runs))
        lines.append(f"| {n} | {limit(n, LEVEL):.2f} | {' | '.join(cells)} | {100 * found / runs:.2f} |")
    return lines


def _below_median(scores: NDArray[numpy.float64]) -> NDArray[numpy.bool_]:
    low: NDArray[numpy.bool_] = scores < numpy.median(scores[:FIRST])
    return low


def _on_the_way() -> list[str]:
    """Healthy runs of which hard questions get long answers, which are wrong more often: all measures together."""
    lines = ["| requests | accused in the end | at a look before | by order of completion |", "|---|---|---|---|"]
    for n, runs in LOOKED_AT.items():
        random = numpy.random.default_rng([n, 1])
        at_end = before = by_end = 0
        for _ in range(runs):
            course = _run(random, n)
            at_end += bool(degradations(course, Metric(), n))
            before += any(degradations(_first(course, k), Metric(), n) for k in _prefixes(course) if k >= min(FIRST, n))
            by_end += bool(degradations(_in_order(course, numpy.argsort(course.ended_s)), Metric(), n))
        shown = " | ".join(f"{100 * count / runs:.2f}" for count in (at_end, before, by_end))
        lines.append(f"| {n} | {shown} |")
    return lines


def _run(random: numpy.random.Generator, n: int) -> Course:
    """A healthy run with IN_FLIGHT requests at a time, each taking as long as its answer."""
    hard = random.random(n)
    lengths = numpy.exp(3 + 3 * hard + 0.3 * random.standard_normal(n)).astype(numpy.intc)
    free, starts = numpy.zeros(IN_FLIGHT), numpy.zeros(n)
    for i in range(n):
        slot = int(free.argmin())
        starts[i] = free[slot]
        free[slot] += lengths[i]
    values = (random.random(n) >= hard / 2).astype(float)
    empty, circling = (bytes((random.random(n) < share).astype(numpy.uint8)) for share in (0.01, 0.02))
    return Course(
        started_s=array("d", starts),
        ended_s=array("d", starts + lengths),
        values=array("d", values),
        lengths=array("i", lengths),
        empty=empty,
        repetitive=circling,
    )


def _prefixes(course: Course) -> list[int]:
    """How many of the first are finished without a gap, whenever EVERY more have finished."""
    ended = numpy.array(course.ended_s)
    looks = numpy.sort(ended)[EVERY - 1 : -1 : EVERY]
    return sorted({int(numpy.argmax(ended > at)) for at in looks})


def _first(course: Course, k: int) -> Course:
    return _in_order(course, numpy.arange(k))


def _in_order(course: Course, order: NDArray[numpy.int64]) -> Course:
    places = order.tolist()
    return Course(
        started_s=array("d", (course.started_s[i] for i in places)),
        ended_s=array("d", (course.ended_s[i] for i in places)),
        values=array("d", (course.values[i] for i in places)),
        lengths=array("i", (course.lengths[i] for i in places)),
        empty=bytes(course.empty[i] for i in places),
        repetitive=bytes(course.repetitive[i] for i in places),
    )


def _falling() -> list[str]:
    lines = [
        "| falls at 100 of 400 from, to | noticed within 40 | noticed | median requests until then |",
        "|---|---|---|---|",
    ]
    for before, after in FALLS:
        delays = []
        for seed in range(RUNS):
            random = numpy.random.default_rng(seed)
            row = numpy.concatenate([random.random(100) >= before, random.random(300) >= after])
            one = onset(row, LEVEL)
            if one is not None and one.noticed > 100:
                delays.append(one.noticed - 100)
        soon = sum(delay <= 40 for delay in delays)
        shown = f"{100 * soon / RUNS:.1f} | {100 * len(delays) / RUNS:.1f} | {numpy.median(delays):.0f}"
        lines.append(f"| {before:.0%}, {after:.0%} | {shown} |")
    return lines


if __name__ == "__main__":
    print(tables())
