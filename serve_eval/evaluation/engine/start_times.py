"""Time the starts of requests: in step with another run, or as a log recorded them.

A load as recorded is open: a request starts at its offset from the first one, whatever else is in
flight. At most MOST_OPEN requests are, so one that finds no room starts late, and is counted as
late.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Iterable, Mapping

from serve_eval.evaluation.engine.budget import BudgetGroup
from serve_eval.frozen import freeze_places
from serve_eval.schema import ArrivalLateness, FailureKind, Progress, Sample

Place = tuple[str, int]
"""A sample, by the name of its task and its position."""


class Lockstep:
    """The meeting point of two runs.

    The samples that both runs ask are numbered in the order of the first run. A run waits at a
    number until the other run reaches that number or a higher one, or leaves. This cannot deadlock,
    even if the runs have different orders: a run waits only at a number higher than all that the
    other has reached, which cannot hold for both. With equal orders, which is the purpose, no run
    is ahead of the other by more than its requests in flight. If the budget of one run is spent,
    both end.
    """

    def __init__(self) -> None:
        self.participants = (Participant(self), Participant(self))
        self._complete = asyncio.Event()
        self.numbers: Mapping[Place, int] = {}
        self.budgets = BudgetGroup()

    def _take_note(self) -> None:
        """Assign numbers to the samples that both runs ask, when both have named theirs."""
        one, other = (participant.places for participant in self.participants)
        if one is not None and other is not None and not self._complete.is_set():
            self.numbers = {
                place: number
                for number, place in enumerate(place for place in one if place in other)
            }
            self._complete.set()

    def _other(self, participant: Participant) -> Participant:
        return self.participants[self.participants[0] is participant]


class Participant:
    """One run in a lockstep. `places` are its samples in the order of their starts."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep
        self.places: Mapping[Place, None] | None = None
        self._reached: float = -1
        self._waiting: list[tuple[int, int, asyncio.Event]] = []
        self._count = 0

    @property
    def budgets(self) -> BudgetGroup:
        """The budgets of both runs, which end together."""
        return self._lockstep.budgets

    async def take(self, places: Iterable[Place]) -> None:
        """Name the samples that this run asks, and wait until the other run has named its own."""
        self.places = dict.fromkeys(places)
        self._lockstep._take_note()
        await self._lockstep._complete.wait()

    async def meet(self, task: str, position: int) -> None:
        """Wait until the other run is about to send this sample or a later one.

        Returns immediately for a sample that the other run does not ask.
        """
        number = self._lockstep.numbers.get((task, position))
        if number is None:
            return
        other = self._lockstep._other(self)
        self._reach(number)
        if other._reached < number:
            self._count += 1
            over = asyncio.Event()
            heapq.heappush(self._waiting, (number, self._count, over))
            await over.wait()

    async def leave(self) -> None:
        """Leave the lockstep, because the run asks nothing more.

        A run that never named its samples has none.
        """
        if self.places is None:
            self.places = {}
            self._lockstep._take_note()
        self._reach(math.inf)

    def _reach(self, number: float) -> None:
        self._reached = max(self._reached, number)
        waiting = self._lockstep._other(self)._waiting
        while waiting and waiting[0][0] <= self._reached:
            heapq.heappop(waiting)[-1].set()


@freeze_places
class Labelled:
    """Progress of one side, with its label before the task name."""

    shown: Progress
    label: str

    def begin(self, task: str, planned: int, completed: int) -> None:
        self.shown.begin(f"{self.label}: {task}", planned, completed)

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None:
        self.shown.update(f"{self.label}: {task}", done, failed, value)

    def end(self, task: str) -> None:
        self.shown.end(f"{self.label}: {task}")


MOST_OPEN = 1024
"""Requests in flight at most, unless `limits.concurrency` is higher."""
ARRIVAL = "arrival_s"
"""Key of the metadata with the seconds between the first request of a log and this one."""


class Arrivals:
    """The recorded times of one session, which begin with its first request."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun: float | None = None
        self._late_s: list[float] = []
        self._span_s = 0.0

    async def wait(self, sample: Sample) -> None:
        """Return at the recorded time of a sample, or at once if that is over."""
        offset = float(sample.metadata[ARRIVAL])
        if self._begun is None:
            self._begun = self._clock() - offset
        due = self._begun + offset
        if (left := due - self._clock()) > 0.0:
            await asyncio.sleep(left)
        self._late_s.append(max(0.0, self._clock() - due))
        self._span_s = max(self._span_s, offset)

    def sum_up(self) -> ArrivalLateness | None:
        """Return how late the requests started; None if there were none."""
        late = sorted(self._late_s)
        if not late:
            return None
        return ArrivalLateness(
            requests=len(late),
            span_s=round(self._span_s, 3),
            median_s=round(late[len(late) // 2], 6),
            p99_s=round(late[min(len(late) - 1, len(late) * 99 // 100)], 6),
            worst_s=round(late[-1], 6),
        )
