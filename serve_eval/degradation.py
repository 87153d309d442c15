"""Did the run turn worse on its way? A final mean hides an endpoint that fails from its hundredth request on.

Looked at in the order in which requests were started, which is random: in another order hard questions may come last,
and in that of completion long answers always do. What is bad is settled by the first requests, and every look at a
course so far is a part of the look at the whole one: looking while the run goes on adds no false alarm.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.schema import Degradation, Metric, RunningShare
from serve_eval.stats.onset import FIRST, LEAST, onset, worse_than_usual

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

VALUE = "value"
EMPTY, REPETITIVE, LONGER, SHORTER = "empty answers", "repetitive answers", "longer answers", "shorter answers"
ALPHA = {VALUE: 0.008, EMPTY: 0.0005, REPETITIVE: 0.0005, LONGER: 0.0005, SHORTER: 0.0005}
"""The probability of a false alarm in a whole run, by what is looked at: .01 together."""
POINTS, SHARE_OF = 200, 20
"""A picture of the course has so many points at most, each the share among the latest one of SHARE_OF requests."""


@dataclass(frozen=True, slots=True)
class Course:
    """The scored samples of a task in the random order in which a run starts them: seconds since 1970 of start and end,
    scores, tokens (or characters where the server does not count), and whether there was no text or one that goes in
    circles."""

    started_s: array[float]
    ended_s: array[float]
    values: array[float]
    lengths: array[int]
    empty: bytes
    repetitive: bytes


def degradations(course: Course, metric: Metric, planned: int) -> tuple[Degradation, ...]:
    """What turned worse, and from which request on, of a course of `planned` samples in random order as far as it came.

    False with probability .01 at most for all its looks together, at the whole and at any of its beginnings of FIRST
    requests or more.
    """
    n = len(course.values)
    if n < LEAST:
        return ()
    found = []
    for measure, bad in _measures(course, metric):
        if (one := onset(bad, ALPHA[measure], planned)) is not None:
            found.append(
                Degradation(
                    measure=measure,
                    since=one.since,
                    noticed=one.noticed,
                    of=n,
                    before=one.before,
                    after=one.after,
                    started_s=min(course.started_s[one.since - 1 :]),  # some may have been asked again much later
                    course=_running(bad, course.ended_s),
                )
            )
    return tuple(found)


def _measures(course: Course, metric: Metric) -> Iterator[tuple[str, NDArray[numpy.bool_]]]:
    """Which samples are bad, by what is looked at."""
    import numpy

    sign = 1.0 if metric.higher_is_better else -1.0
    worst = metric.lo if metric.higher_is_better else metric.hi
    values = numpy.frombuffer(course.values) * sign
    yield VALUE, worse_than_usual(values, None if worst is None else sign * worst)
    yield EMPTY, numpy.frombuffer(course.empty, dtype=numpy.bool_)
    yield REPETITIVE, numpy.frombuffer(course.repetitive, dtype=numpy.bool_)
    lengths = numpy.frombuffer(course.lengths, dtype=numpy.intc)
    low, high = numpy.quantile(lengths[:FIRST], [0.25, 0.75])
    yield LONGER, lengths > high
    yield SHORTER, lengths < low


def _running(bad: NDArray[numpy.bool_], ended_s: array[float]) -> RunningShare:
    """The course as a picture shows it: by starts, and by ends."""
    import numpy

    n = len(bad)
    window = max(1, n // SHARE_OF)
    at = numpy.unique(numpy.linspace(window, n, min(POINTS, n - window + 1)).round().astype(int))

    def shares(row: NDArray[numpy.bool_]) -> tuple[float, ...]:
        counts = numpy.concatenate([[0], numpy.cumsum(row)])
        return tuple(((counts[at] - counts[at - window]) / window).round(4).tolist())

    by_end = bad[numpy.argsort(numpy.frombuffer(ended_s), kind="stable")]
    return RunningShare(window=window, at=tuple(at.tolist()), by_start=shares(bad), by_end=shares(by_end))


def told(one: Degradation) -> str:
    """A line for people."""
    return (
        f"degrading from request {one.since} of {one.of} on, in the order of their starts: {one.before:.1%} "
        f"{what(one)} before, {one.after:.1%} from there on (noticed at request {one.noticed})"
    )


def told_so_far(one: Degradation, planned: int) -> str:
    """The same while the run goes on."""
    return (
        f"degrading from request {one.since} on: {one.before:.1%} {what(one)} before, {one.after:.1%} from there to "
        f"request {one.of} of {planned}, in the order of their starts; the run goes on"
    )


def what(one: Degradation) -> str:
    """What is counted as bad, in words."""
    return "bad scores" if one.measure == VALUE else one.measure
