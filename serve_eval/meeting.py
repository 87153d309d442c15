"""Two runs in step: a sample that both are going to ask is sent by both at the same time, or by neither yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

Place = tuple[str, int]
"""A sample, by the name of its task and its position."""


class Meeting:
    """Where two runs wait for each other.

    Both have to start what they have in common in the same order, else each could wait for the other for ever: of two
    samples that are waited for, the other run would be behind with both.
    """

    def __init__(self) -> None:
        self.seats = (Seat(self), Seat(self))
        self._complete = asyncio.Event()
        self._common: frozenset[Place] = frozenset()
        self._waiting: dict[Place, asyncio.Event] = {}

    async def _seated(self) -> None:
        one, other = (seat.places for seat in self.seats)
        if one is not None and other is not None and not self._complete.is_set():
            self._common = one & other
            self._complete.set()
        await self._complete.wait()

    async def _meet(self, place: Place) -> None:
        if place not in self._common:
            return
        if (other := self._waiting.pop(place, None)) is not None:
            other.set()
            return
        mine = self._waiting[place] = asyncio.Event()
        await mine.wait()


class Seat:
    """One run's place at a meeting."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self.places: frozenset[Place] | None = None

    async def take(self, places: Iterable[Place]) -> None:
        """Says what this run is going to ask, and waits until the other one has said so too."""
        self.places = frozenset(places)
        await self._meeting._seated()

    async def meet(self, task: str, position: int) -> None:
        """Waits until the other run is about to send that sample; not at all for one that it does not ask."""
        await self._meeting._meet((task, position))

    async def leave(self) -> None:
        """The run is over. If it never said what it asks, that is nothing."""
        if self.places is None:
            await self.take(())
