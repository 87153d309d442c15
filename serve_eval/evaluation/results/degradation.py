"""Detect a run that gets worse as it goes. A final mean hides an endpoint that fails from its
hundredth request on.

Looked at in the order in which requests were started, which is random: in another order hard
questions may come last, and in that of completion long answers always do. What is bad is settled by
the reference's scores of the same prompts, or without them by the first requests, and every look at
a course so far is a part of the look at the whole one: looking while the run goes on adds no false
alarm.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from serve_eval.schema import Degradation, Metric, RunningShare
from serve_eval.stats.onset import FIRST, LEAST, Usual, limit, onset, passes, usual

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from serve_eval.verdicts.below_reference import Expected

VALUE = "value"
EMPTY, REPETITIVE, LONGER, SHORTER = (
    "empty answers",
    "repetitive answers",
    "longer answers",
    "shorter answers",
)
ALPHA = {VALUE: 0.008, EMPTY: 0.0005, REPETITIVE: 0.0005, LONGER: 0.0005, SHORTER: 0.0005}
"""The probability of a false alarm in a whole run, by what is looked at: .01 together."""
POINTS, SHARE_OF = 200, 20
"""A picture of the course has so many points at most, each the share among the latest one of
SHARE_OF requests."""


@dataclass(frozen=True, slots=True)
class Course:
    """The scored samples of a task in the random order in which a run starts them: seconds since
    1970 of start and end, scores, tokens (or characters where the server does not count), and
    whether there was no text or one that goes in circles. `places` are the positions of the samples
    in the protocol, which tell their prompts.
    """

    started_s: array[float]
    ended_s: array[float]
    values: array[float]
    lengths: array[int]
    empty: bytes
    repetitive: bytes
    places: array[int] = field(default_factory=lambda: array("q"))


@dataclass(frozen=True, slots=True)
class _Look:
    """Samples of a course that are looked at together: which of them are `bad`, and their `numbers`
    in the course counted from 1. `counted` says what is bad where a reference says it.
    """

    measure: str
    bad: NDArray[numpy.bool_]
    numbers: NDArray[numpy.int64]
    counted: str = ""


class _Rule:
    """What is bad in a run of `planned` samples, settled by the `start` of its course: its first
    FIRST samples, or all there are. The same of the whole course and of any part of it.
    """

    def __init__(
        self, start: Course, metric: Metric, planned: int, expected: Expected | None
    ) -> None:
        import numpy

        self._sign = 1.0 if metric.higher_is_better else -1.0
        self._expected = expected
        worst = metric.lo if metric.higher_is_better else metric.hi
        values = self._sign * numpy.frombuffer(start.values)[:FIRST]
        self._usual: Usual = usual(values, None if worst is None else self._sign * worst)
        lengths = numpy.frombuffer(start.lengths, dtype=numpy.intc)[:FIRST]
        self._low, self._high = numpy.quantile(lengths, [0.25, 0.75])
        by_value = planned if expected is None else expected.count_looks(planned)
        self.planned = {**dict.fromkeys(ALPHA, planned), VALUE: by_value}

    def looks(self, course: Course) -> Iterator[_Look]:
        """Yield what is looked at: the value by itself or against the reference, and the form of
        the answers.
        """
        import numpy

        values = numpy.frombuffer(course.values)
        everyone = numpy.arange(1, len(values) + 1)
        if self._expected is None:
            yield _Look(VALUE, self._usual.worse(self._sign * values), everyone)
        else:
            bad, kept = self._expected.among(course.places, values)
            yield _Look(VALUE, bad, kept + 1, self._expected.counted)
        yield _Look(EMPTY, numpy.frombuffer(course.empty, dtype=numpy.bool_), everyone)
        yield _Look(REPETITIVE, numpy.frombuffer(course.repetitive, dtype=numpy.bool_), everyone)
        lengths = numpy.frombuffer(course.lengths, dtype=numpy.intc)
        yield _Look(LONGER, lengths > self._high, everyone)
        yield _Look(SHORTER, lengths < self._low, everyone)


def degradations(
    course: Course, metric: Metric, planned: int, expected: Expected | None = None
) -> tuple[Degradation, ...]:
    """Return what turned worse, and from which request on, in a course of `planned` samples as far
    as it came.

    False with probability .01 at most for all its looks together, at the whole and at any of its
    beginnings of FIRST requests or more, over the random order of the samples. With `expected` a
    score is compared with those of the reference for the same prompt: of the samples that the
    reference lets look at the order is random too.
    """
    n = len(course.values)
    if n < LEAST:
        return ()
    found = []
    rule = _Rule(course, metric, planned, expected)
    for look in rule.looks(course):
        if (one := onset(look.bad, ALPHA[look.measure], rule.planned[look.measure])) is not None:
            since = int(look.numbers[one.since - 1])
            found.append(
                Degradation(
                    measure=look.measure,
                    since=since,
                    noticed=int(look.numbers[one.noticed - 1]),
                    of=n,
                    before=one.before,
                    after=one.after,
                    started_s=min(
                        course.started_s[since - 1 :]
                    ),  # some may have been asked again much later
                    course=_build_running(look, course.ended_s),
                    counted=look.counted,
                )
            )
    return tuple(found)


class Lookout:
    """Finds the measures that turn worse in a course that grows, at the cost of what is new: those
    that `degradations` finds in all of the course so far. It keeps a byte per sample and
    measure.
    """

    def __init__(self, metric: Metric, planned: int, expected: Expected | None = None) -> None:
        self._metric, self._planned, self._expected = metric, planned, expected
        self._rule: _Rule | None = None
        self._bad = {measure: bytearray() for measure in ALPHA}
        self._searched = dict.fromkeys(ALPHA, 0)

    def extend(self, part: Course, known: Set[str] = frozenset()) -> set[str]:
        """Take the next part of the course, at first FIRST samples or all there are. Return the
        measures that turned worse in it, but for those that are `known` to have done so: these are
        not looked at any more.
        """
        import numpy

        if self._rule is None:
            self._rule = _Rule(part, self._metric, self._planned, self._expected)
        found = set()
        for look in self._rule.looks(part):
            name = look.measure
            if name in known:
                continue
            self._bad[name] += look.bad.tobytes()
            row = numpy.frombuffer(self._bad[name], dtype=numpy.bool_)
            if len(row) < LEAST:
                continue
            if (
                passes(row, limit(self._rule.planned[name], ALPHA[name]), self._searched[name])
                is not None
            ):
                found.add(name)
            self._searched[name] = len(row)
        return found


def _build_running(look: _Look, ended_s: array[float]) -> RunningShare:
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


def describe(one: Degradation) -> str:
    """A line for people."""
    return (
        f"degrading from request {one.since} of {one.of} on, in the order of their starts:"
        f" {one.before:.1%} {what(one)} before, {one.after:.1%} from there on (noticed at request"
        f" {one.noticed})"
    )


def describe_so_far(one: Degradation, planned: int) -> str:
    """The same while the run goes on."""
    return (
        f"degrading from request {one.since} on: {one.before:.1%} {what(one)} before,"
        f" {one.after:.1%} from there to request {one.of} of {planned}, in the order of their"
        " starts; the run goes on"
    )


def what(one: Degradation) -> str:
    """Say in words what is counted as bad."""
    return one.counted or ("bad scores" if one.measure == VALUE else one.measure)
