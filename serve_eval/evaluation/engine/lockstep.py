"""Two runs in step: a sample that both are going to ask is sent by both at the same time, or by
neither yet.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Iterable, Mapping

Place = tuple[str, int]
"""A sample, by the name of its task and its position."""


class Lockstep:
    """Where two runs wait for each other.

    What they have in common is numbered, in the order of the first. A run waits at a number until
    the other one has come to it or to a higher one, or has left. So they never wait for each other
    without end, in whatever orders they come: one waits at a number above all that the other has
    come to, and both of them cannot. In the same order, which is the purpose, none is ahead of the
    other by more than what it has in flight.
    """

    def __init__(self) -> None:
        self.participants = (Participant(self), Participant(self))
        self._complete = asyncio.Event()
        self.numbers: Mapping[Place, int] = {}

    def _take_note(self) -> None:
        """Numbers what both have said that they ask."""
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
    """One run's place in a lockstep. `places` are what it asks, in the order of their starts."""

    def __init__(self, lockstep: Lockstep) -> None:
        self._lockstep = lockstep
        self.places: Mapping[Place, None] | None = None
        self._reached: float = -1
        self._waiting: list[tuple[int, int, asyncio.Event]] = []
        self._count = 0

    async def take(self, places: Iterable[Place]) -> None:
        """Says what this run is going to ask, and waits until the other one has said so too."""
        self.places = dict.fromkeys(places)
        self._lockstep._take_note()
        await self._lockstep._complete.wait()

    async def meet(self, task: str, position: int) -> None:
        """Waits until the other run is about to send that sample, or one behind it; not at all for
        one that it does not ask.
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
        """The run asks nothing more. If it never said what it asks, that is nothing."""
        if self.places is None:
            self.places = {}
            self._lockstep._take_note()
        self._reach(math.inf)

    def _reach(self, number: float) -> None:
        self._reached = max(self._reached, number)
        waiting = self._lockstep._other(self)._waiting
        while waiting and waiting[0][0] <= self._reached:
            heapq.heappop(waiting)[-1].set()
