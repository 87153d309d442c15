"""The alarm while a run goes on: it is told that the run turns worse as soon as that can be seen.

Only samples of which all that were started before are finished are looked at. What finished early beyond the first
unfinished sample waits: quick answers are not like slow ones, and a long answer that is still missing is no good one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from serve_eval.degradation import FIRST, degradations, told_so_far
from serve_eval.tally import Tally

GROWTH = 0.02
"""By what share more samples have to be there for another look, which takes time in proportion to all of them."""


class Alarm:
    """Looks at a task whose samples are started in the order of `positions`, in a session before which others were
    `had`. `told` gets a line for each measure that turned worse, once."""

    def __init__(
        self, tally: Tally, positions: Sequence[int], told: Callable[[str], None], *, had: Sequence[int] = ()
    ) -> None:
        self._tally, self._positions, self._told, self._had = tally, positions, told, had
        self._finished, self._looked_at = 0, 0
        self._known: set[str] = set()

    async def look(self) -> None:
        """Looks at what has finished without a gap, where that is more than at the last look by GROWTH."""
        tally, positions = self._tally, self._positions
        while self._finished < len(positions) and tally.score(positions[self._finished]) is not None:
            self._finished += 1
        planned = len(tally.samples)
        if not self._finished or self._finished < (1.0 + GROWTH) * self._looked_at:
            return
        self._looked_at = self._finished
        course = tally.course([*self._had, *positions[: self._finished]])
        if len(course.values) < min(FIRST, planned):
            return
        for one in await asyncio.to_thread(degradations, course, tally.task.metric, planned):
            if one.measure not in self._known:
                self._known.add(one.measure)
                self._told(f"warning: {tally.task.name}: {told_so_far(one, planned)}")
