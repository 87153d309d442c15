"""Detect a run that gets worse as it goes. A final mean hides an endpoint that fails from its hundredth request on.

Looked at in the order in which requests were started, which is random: in another order hard questions may come last,
and in that of completion long answers always do. What is bad is settled by the reference's scores of the same prompts,
or without them by the first requests, and every look at a course so far is a part of the look at the whole one: looking
while the run goes on adds no false alarm.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from serve_eval.schema import Degradation, Metric, RunningShare
from serve_eval.stats.onset import FIRST, LEAST, onset, worse_than_usual

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from serve_eval.against_reference import Expected

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
    circles. `places` are the positions of the samples in the protocol, which tell their prompts."""

    started_s: array[float]
    ended_s: array[float]
    values: array[float]
    lengths: array[int]
    empty: bytes
    repetitive: bytes
    places: array[int] = field(default_factory=lambda: array("q"))


@dataclass(frozen=True, slots=True)
class _Look:
    """Samples of a course that are looked at together: which of them are `bad`, their `numbers` in the course counted
    from 1, and how many the whole run has of them. `counted` says what is bad where a reference says it."""

    measure: str
    bad: NDArray[numpy.bool_]
    numbers: NDArray[numpy.int64]
    planned: int
    counted: str = ""


def degradations(
    course: Course, metric: Metric, planned: int, expected: Expected | None = None
) -> tuple[Degradation, ...]:
    """Return what turned worse, and from which request on, in a course of `planned` samples as far as it came.

    False with probability .01 at most for all its looks together, at the whole and at any of its beginnings of FIRST
    requests or more, over the random order of the samples. With `expected` a score is compared with those of the
    reference for the same prompt: of the samples that the reference lets look at the order is random too.
    """
    n = len(course.values)
    if n < LEAST:
        return ()
    found = []
    for look in _looks(course, metric, planned, expected):
        if (one := onset(look.bad, ALPHA[look.measure], look.planned)) is not None:
            since = int(look.numbers[one.since - 1])
            found.append(
                Degradation(
                    measure=look.measure,
                    since=since,
                    noticed=int(look.numbers[one.noticed - 1]),
                    of=n,
                    before=one.before,
                    after=one.after,
                    started_s=min(course.started_s[since - 1 :]),  # some may have been asked again much later
                    course=_running(look, course.ended_s),
                    counted=look.counted,
                )
            )
    return tuple(found)


def _looks(course: Course, metric: Metric, planned: int, expected: Expected | None) -> Iterator[_Look]:
    """Yield what is looked at: the value by itself or against the reference, and the form of the answers."""
    import numpy

    values = numpy.frombuffer(course.values)
    everyone = numpy.arange(1, len(values) + 1)
    if expected is None:
        yield _Look(VALUE, _below_usual(values, metric), everyone, planned)
    else:
        bad, kept = expected.among(course.places, values)
        yield _Look(VALUE, bad, kept + 1, expected.looked_at(planned), expected.counted)
    yield _Look(EMPTY, numpy.frombuffer(course.empty, dtype=numpy.bool_), everyone, planned)
    yield _Look(REPETITIVE, numpy.frombuffer(course.repetitive, dtype=numpy.bool_), everyone, planned)
    lengths = numpy.frombuffer(course.lengths, dtype=numpy.intc)
    low, high = numpy.quantile(lengths[:FIRST], [0.25, 0.75])
    yield _Look(LONGER, lengths > high, everyone, planned)
    yield _Look(SHORTER, lengths < low, everyone, planned)


def _below_usual(scores: NDArray[numpy.float64], metric: Metric) -> NDArray[numpy.bool_]:
    """Return which scores are worse than the usual one of the first requests."""
    sign = 1.0 if metric.higher_is_better else -1.0
    worst = metric.lo if metric.higher_is_better else metric.hi
    return worse_than_usual(scores * sign, None if worst is None else sign * worst)


def _running(look: _Look, ended_s: array[float]) -> RunningShare:
    """Return the course as a picture shows it: by starts, and by ends."""
    import numpy

    bad, n = look.bad, len(look.bad)
    window = max(1, n // SHARE_OF)
    at = numpy.unique(numpy.linspace(window, n, min(POINTS, n - window + 1)).round().astype(int))

    def shares(row: NDArray[numpy.bool_]) -> tuple[float, ...]:
        counts = numpy.concatenate([[0], numpy.cumsum(row)])
        return tuple(((counts[at] - counts[at - window]) / window).round(4).tolist())

    by_end = bad[numpy.argsort(numpy.frombuffer(ended_s)[look.numbers - 1], kind="stable")]
    return RunningShare(
        window=window,
        at=tuple(look.numbers[at - 1].tolist()),
        by_start=shares(bad),
        by_end=shares(by_end),
    )


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
    """Say in words what is counted as bad."""
    return one.counted or ("bad scores" if one.measure == VALUE else one.measure)
