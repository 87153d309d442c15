"""The alarm while a run goes on: it is told that the run turns worse as soon as that can be seen.

Only samples of which all that were started before are finished are looked at. What finished early
beyond the first unfinished sample waits: quick answers are not like slow ones, and a long answer
that is still missing is no good one.
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
"""By what share more samples have to be there for another look, and by what share once there are
LATER of them. Small runs are told soon; in long ones a look keeps others waiting, and a share of
them is many samples all the same."""


class DegradationAlarm:
    """Watch a task whose samples are started in the random order `planned`, in this session or in
    an earlier one.

    `notify` gets a line for each measure that turned worse, once. `expected` says which scores are
    bad; without a reference it is None.
    """

    def __init__(
        self,
        accumulator: ScoreAccumulator,
        planned: Sequence[int],
        notify: Callable[[str], None],
        expected: Expected | None = None,
    ) -> None:
        self._accumulator, self._planned, self._notify, self._expected = (
            accumulator,
            planned,
            notify,
            expected,
        )
        self._known: set[str] = set()
        self.restart()

    def restart(self) -> None:
        """Looks from the beginning again: answers were withdrawn."""
        self._search = _Search(self._accumulator, self._planned, self._expected)
        self._came = 0

    async def look(self) -> None:
        """Looks at what has finished without a gap, in a thread, where that is enough more than at
        the last look.
        """
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
    """One search through a task, from its beginning on."""

    def __init__(
        self, accumulator: ScoreAccumulator, planned: Sequence[int], expected: Expected | None
    ) -> None:
        self._accumulator, self._planned, self._expected = accumulator, planned, expected
        self._lookout = Lookout(accumulator.task.metric, len(accumulator.samples), expected)
        self._finished = self._looked_at = self._taken = 0

    def go_on(self, known: Set[str]) -> tuple[Degradation, ...]:
        """Return what has turned worse, when a measure that is not `known` yet did so since the
        last look.
        """
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
            accumulator.course(self._planned[:end]), metric, planned, self._expected
        )
