"""Did the run turn worse on its way? A final mean hides an endpoint that fails from its hundredth request on.

Looked at in the order in which requests were started, which is random: in another order hard questions may come last,
and in that of completion long answers always do.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.schema import Degradation, Metric

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

VALUE = "value"
EMPTY, REPETITIVE, LONGER, SHORTER = "empty answers", "repetitive answers", "longer answers", "shorter answers"
ALPHA = {VALUE: 0.008, EMPTY: 0.0005, REPETITIVE: 0.0005, LONGER: 0.0005, SHORTER: 0.0005}
"""The probability of a false alarm in a whole run, by what is looked at: .01 together."""


@dataclass(frozen=True, slots=True)
class Course:
    """The scored samples of a task in the order of their starts: seconds since 1970, scores, tokens (or characters
    where the server does not count), and whether there was no text or one that goes in circles."""

    started_s: array[float]
    values: array[float]
    lengths: array[int]
    empty: bytes
    repetitive: bytes


def degradations(course: Course, metric: Metric) -> tuple[Degradation, ...]:
    """What turned worse, and from which request on. Of a course in random order, false with probability .01 at most."""
    from serve_eval.stats.onset import LEAST, onset

    n = len(course.values)
    if n < LEAST:
        return ()
    found = []
    for measure, bad in _measures(course, metric):
        if (one := onset(bad, ALPHA[measure])) is not None:
            at = course.started_s[one.since - 1]
            found.append(
                Degradation(
                    measure=measure,
                    since=one.since,
                    noticed=one.noticed,
                    of=n,
                    before=one.before,
                    after=one.after,
                    started_s=at,
                )
            )
    return tuple(found)


def _measures(course: Course, metric: Metric) -> Iterator[tuple[str, NDArray[numpy.bool_]]]:
    """Which samples are bad, by what is looked at. Where there are more than two scores, or lengths, bad is what lies
    beyond a quantile of the whole run: that depends on the order of nothing."""
    import numpy

    values = numpy.frombuffer(course.values) * (1.0 if metric.higher_is_better else -1.0)
    distinct = numpy.unique(values)
    best = distinct[-1] if len(distinct) <= 2 else numpy.median(values)
    low = values < best
    yield VALUE, low if low.any() else values <= best  # the median may be the lowest score there is
    yield EMPTY, numpy.frombuffer(course.empty, dtype=numpy.bool_)
    yield REPETITIVE, numpy.frombuffer(course.repetitive, dtype=numpy.bool_)
    lengths = numpy.frombuffer(course.lengths, dtype=numpy.intc)
    low, high = numpy.quantile(lengths, [0.25, 0.75])
    yield LONGER, lengths > high
    yield SHORTER, lengths < low


def told(one: Degradation) -> str:
    """A line for people."""
    what = "bad scores" if one.measure == VALUE else one.measure
    return (
        f"degrading from request {one.since} of {one.of} on, in the order of their starts: {one.before:.1%} {what} "
        f"before, {one.after:.1%} from there on (noticed at request {one.noticed})"
    )
