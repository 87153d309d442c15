"""Detect a run that gets worse as it goes, which its final mean would hide.

Requests are examined in the order of their starts, which is random. In any other order, hard
questions may come last, and in the order of completion, long answers always do. The reference's
scores of the same prompts define bad answers. Without them, the first requests do. Every look at
the course so far is part of the look at the whole course, so that looking during the run adds no
false alarms.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Set
from dataclasses import field
from typing import TYPE_CHECKING

from serve_eval.frozen import freeze, freeze_places
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
"""Probability of a false alarm in a whole run by measure, over its tasks. The sum is .01."""
POINTS, SHARE_OF = 200, 20
"""A plot of the course has at most POINTS points. Each point is the share of bad answers in the
latest 1/SHARE_OF of the requests."""


@freeze
class Course:
    """The scored samples of a task in the random order in which a run starts them.

    Times of start and end are in seconds since 1970. `lengths` are in tokens, or in characters if
    the server does not count tokens. `empty` and `repetitive` are flags of the answers. `places`
    are the positions of the samples in the protocol, which identify their prompts.
    """

    started_s: array[float]
    ended_s: array[float]
    values: array[float]
    lengths: array[int]
    empty: bytes
    repetitive: bytes
    places: array[int] = field(default_factory=lambda: array("q"))


@freeze_places
class _Look:
    """Samples of a course that are examined together.

    `bad` marks the bad samples. `numbers` are their positions in the course, counted from 1.
    `counted` describes what is bad if a reference defines it.
    """

    measure: str
    bad: NDArray[numpy.bool_]
    numbers: NDArray[numpy.integer]
    counted: str = ""


class _Rule:
    """The definition of a bad answer in a run of `planned` samples.

    It depends only on `start`, the first FIRST samples of the course or all there are. So it is the
    same for the whole course and for any part of it.
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
        """Yield the samples by measure: the value and the form of the answers.

        The value is compared with the reference, or with the first requests.
        """
        import numpy

        values = numpy.frombuffer(course.values)
        everyone = numpy.arange(1, len(values) + 1, dtype=numpy.int32)
        if self._expected is None:
            signed = values if self._sign > 0 else -values
            yield _Look(VALUE, self._usual.worse(signed), everyone)
        else:
            bad, kept = self._expected.among(course.places, values)
            yield _Look(VALUE, bad, kept + 1, self._expected.counted)
        yield _Look(EMPTY, numpy.frombuffer(course.empty, dtype=numpy.bool_), everyone)
        yield _Look(REPETITIVE, numpy.frombuffer(course.repetitive, dtype=numpy.bool_), everyone)
        lengths = numpy.frombuffer(course.lengths, dtype=numpy.intc)
        yield _Look(LONGER, lengths > self._high, everyone)
        yield _Look(SHORTER, lengths < self._low, everyone)


def degradations(
    course: Course,
    metric: Metric,
    planned: int,
    expected: Expected | None = None,
    *,
    courses: int = 1,
) -> tuple[Degradation, ...]:
    """Return the measures that got worse in a course of `planned` samples, each with its onset.

    The probability of a false alarm is at most .01 over the random order of the samples. It covers
    all looks together: at the whole course and at any of its beginnings of at least FIRST requests.
    With `expected`, each score is compared with the reference's scores of the same prompt. The
    samples that the reference allows to compare are in random order too. Each of several
    `courses`, those of a run's tasks and shards, has an equal part of this probability.
    """
    n = len(course.values)
    if n < LEAST:
        return ()
    found = []
    rule = _Rule(course, metric, planned, expected)
    for look in rule.looks(course):
        if (
            one := onset(look.bad, ALPHA[look.measure] / courses, rule.planned[look.measure])
        ) is not None:
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
                    ),  # some may have been sent again much later
                    course=_build_running(look, course.ended_s),
                    counted=look.counted,
                )
            )
    return tuple(found)


class Lookout:
    """Find the measures that get worse in a growing course, at a cost proportional to the new part.

    The result is that of `degradations` for the whole course so far. It keeps a byte per sample and
    measure.
    """

    def __init__(
        self, metric: Metric, planned: int, expected: Expected | None = None, *, courses: int = 1
    ) -> None:
        self._metric, self._planned, self._expected = metric, planned, expected
        self._courses = courses
        self._rule: _Rule | None = None
        self._bad = {measure: bytearray() for measure in ALPHA}
        self._searched = dict.fromkeys(ALPHA, 0)

    def extend(self, part: Course, known: Set[str] = frozenset()) -> set[str]:
        """Take the next part of the course, and return the measures that got worse in it.

        The first part has FIRST samples, or all there are. Measures that are `known` are no longer
        examined.
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
                passes(
                    row,
                    limit(self._rule.planned[name], ALPHA[name] / self._courses),
                    self._searched[name],
                )
                is not None
            ):
                found.add(name)
            self._searched[name] = len(row)
        return found


def _build_running(look: _Look, ended_s: array[float]) -> RunningShare:
    """Return the running share of bad answers for a plot, by starts and by ends."""
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
    """Return a line about a degradation in a finished run."""
    return (
        f"degrading from request {one.since} of {one.of} on, in the order of their starts:"
        f" {one.before:.1%} {what(one)} before, {one.after:.1%} from there on (detected at request"
        f" {one.noticed})"
    )


def describe_so_far(one: Degradation, planned: int) -> str:
    """Return a line about a degradation while the run goes on."""
    return (
        f"degrading from request {one.since} on: {one.before:.1%} {what(one)} before,"
        f" {one.after:.1%} from there to request {one.of} of {planned}, in the order of their"
        " starts; the run goes on"
    )


def what(one: Degradation) -> str:
    """Return a phrase for the bad answers that are counted."""
    return one.counted or ("bad scores" if one.measure == VALUE else one.measure)
