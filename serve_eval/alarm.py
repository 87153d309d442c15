"""The alarm while a run goes on: it is told that the run turns worse as soon as that can be seen.

Only samples of which all that were started before are finished are looked at. What finished early beyond the first
unfinished sample waits: quick answers are not like slow ones, and a long answer that is still missing is no good one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from serve_eval.against_reference import Expected
from serve_eval.degradation import degradations, told_so_far
from serve_eval.stats.onset import FIRST
from serve_eval.tally import Tally

GROWTH = 0.02
"""By what share more samples have to be there for another look, which takes time in proportion to all of them."""


class Alarm:
    """Looks at a task whose samples are started in the random order `planned`, in this session or in an earlier one.
    `told` gets a line for each measure that turned worse, once. `expected` says which scores are bad, where a reference
    tells."""

    def __init__(
        self,
        tally: Tally,
        planned: Sequence[int],
        told: Callable[[str], None],
        expected: Expected | None = None,
    ) -> None:
        self._tally, self._planned, self._told, self._expected = tally, planned, told, expected
        self._finished, self._looked_at = 0, 0
        self._known: set[str] = set()

    async def look(self) -> None:
        """Looks at what has finished without a gap, where that is more than at the last look by GROWTH."""
        tally, planned = self._tally, len(self._tally.samples)
        self._finished = tally.had(self._planned, self._finished)
        if not self._finished or self._finished < (1.0 + GROWTH) * self._looked_at:
            return
        self._looked_at = self._finished
        course = tally.course(self._planned[: self._finished])
        if len(course.values) < min(FIRST, planned):
            return
        for one in await asyncio.to_thread(degradations, course, tally.task.metric, planned, self._expected):
            if one.measure not in self._known:
                self._known.add(one.measure)
                self._told(f"warning: {tally.task.name}: {told_so_far(one, planned)}")
