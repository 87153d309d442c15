"""Warn during a run as soon as it is clear that it gets worse.

The alarm examines only the samples up to the first unfinished one, in the order of their starts.
Samples that finished early have to wait: quick answers differ from slow ones, and a long answer
that is still missing is often a bad one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence, Set

from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.degradation import Lookout, degradations, describe_so_far
from serve_eval.schema import Degradation
from serve_eval.stats.onset import FIRST
from serve_eval.verdicts.below_reference import Expected

GROWTH, LATER_GROWTH, LATER = 0.02, 0.1, 4000
"""Share of additional samples that triggers another look: GROWTH, and LATER_GROWTH from LATER
samples on. Small runs are warned early. In long runs, looks take longer, and even a small share
is many samples."""


class DegradationAlarm:
    """Watch a task whose samples start in the random order `planned`, over one or several sessions.

    `notify` receives one line for each measure that gets worse. `expected` defines bad scores. It
    is None without a reference. All `courses` of a run share the probability of a false alarm.
    """

    def __init__(
        self,
        accumulator: ScoreAccumulator,
        planned: Sequence[int],
        notify: Callable[[str], None],
        expected: Expected | None = None,
        *,
        courses: int = 1,
    ) -> None:
        self._courses = courses
        self._accumulator, self._planned, self._notify, self._expected = (
            accumulator,
            planned,
            notify,
            expected,
        )
        self._known: set[str] = set()
        self.restart()

    def restart(self) -> None:
        """Start again from the first sample, because answers were withdrawn."""
        self._search = _Search(self._accumulator, self._planned, self._expected, self._courses)
        self._came = 0

    async def look(self) -> None:
        """Examine the finished samples in a thread, if there are enough new ones."""
        accumulator, search, came = (
            self._accumulator,
            self._search,
            self._accumulator.scored + self._accumulator.failed,
        )
        if came == self._came:
            return
        self._came = came
        worse = await asyncio.to_thread(search.go_on, self._known)
        if search is not self._search:  # answers were withdrawn meanwhile
            return
        for one in worse:
            if one.measure not in self._known:
                self._known.add(one.measure)
                self._notify(
                    f"warning: {accumulator.task.name}:"
                    f" {describe_so_far(one, len(accumulator.samples))}"
                )


class _Search:
    """One search through a task, from its first sample."""

    def __init__(
        self,
        accumulator: ScoreAccumulator,
        planned: Sequence[int],
        expected: Expected | None,
        courses: int,
    ) -> None:
        self._accumulator, self._planned, self._expected = accumulator, planned, expected
        self._courses = courses
        self._lookout = Lookout(
            accumulator.task.metric, len(accumulator.samples), expected, courses=courses
        )
        self._finished = self._looked_at = self._taken = 0

    def go_on(self, known: Set[str]) -> tuple[Degradation, ...]:
        """Return what got worse if a measure that is not `known` did so since the last look."""
        accumulator, metric, planned = (
            self._accumulator,
            self._accumulator.task.metric,
            len(self._accumulator.samples),
        )
        self._finished = end = accumulator.count_completed(self._planned, self._finished)
        growth = GROWTH if self._looked_at < LATER else LATER_GROWTH
        if not end or end < (1.0 + growth) * self._looked_at:
            return ()
        self._looked_at = end
        part = accumulator.course(self._planned[self._taken : end])
        if not self._taken and len(part.values) < min(FIRST, planned):
            return ()
        self._taken = end
        if not self._lookout.extend(part, known):
            return ()
        return degradations(
            accumulator.course(self._planned[:end]),
            metric,
            planned,
            self._expected,
            courses=self._courses,
        )
