"""One task on its way through the engine: what is still to be asked, and where its results go."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.storage.journal import Journal, Record
from serve_eval.schema import Failure, Progress, Response


class StoppingRule(Protocol):
    """Looks at a task while it is asked. `look` says whether its verdict is decided, so that no
    more is needed; `restart` has it look from the beginning again.
    """

    def look(self) -> bool: ...

    def restart(self) -> None: ...


class CourseObserver(Protocol):
    """Looks at a task while it is asked, and reports what it sees; `restart` has it look from the
    beginning again.
    """

    async def look(self) -> None: ...

    def restart(self) -> None: ...


class Lane:
    """One task of a run: the samples to ask, by position in the order of their starts, and where
    results go.

    With `early` the lane ends as soon as that is decided; `meet` is waited for before each sample
    is sent; `alarm` looks at the lane now and then. `left` counts the samples without a result, and
    `waiting` those that are not sent.
    """

    def __init__(
        self,
        name: str,
        accumulator: ScoreAccumulator,
        journal: Journal,
        positions: Sequence[int],
        early: StoppingRule | None = None,
        meet: Callable[[int], Awaitable[None]] | None = None,
        alarm: CourseObserver | None = None,
    ) -> None:
        self.name, self.accumulator, self.journal, self.early, self.meet = (
            name,
            accumulator,
            journal,
            early,
            meet,
        )
        self.alarm = alarm
        self.asking: set[asyncio.Task[None]] = set()
        self.refill(positions)

    def refill(self, positions: Sequence[int]) -> None:
        """Take these samples as those to ask."""
        self.positions, self.begun, self.decided = positions, False, False
        self.left = self.waiting = len(positions)

    def iterate_starts(self, progress: Progress | None) -> Iterator[int]:
        """Yield the positions until the lane is decided; its progress begins with the first."""
        self.begun = True
        if progress is not None:
            accumulator = self.accumulator
            progress.begin(self.name, len(accumulator.samples), accumulator.scored)
            progress.update(
                self.name, accumulator.scored, accumulator.failed, accumulator.running_value
            )
        for i in self.positions:
            if self.decided:
                return
            yield i

    def keep(self, i: int, result: Response | Failure) -> None:
        """Write a result to the journal. Raises JournalError when that fails."""
        sample = self.accumulator.samples[i].id
        if isinstance(result, Response):
            self.journal.append(Record(id=sample, response=result))
        else:
            self.journal.append(Record(id=sample, failure=result))

    def forget(self, responses: Mapping[str, Response]) -> None:
        """Take these answers back, by the ids of their samples."""
        for i, sample in enumerate(self.accumulator.samples):
            if (response := responses.get(sample.id)) is not None:
                self.accumulator.forget(i, response)
        for looking in (self.early, self.alarm):
            if looking is not None:
                looking.restart()

    def list_missing(self) -> Sequence[int]:
        """The samples that have no result, in the order of their starts, unless the lane is decided
        without them.
        """
        if self.early is not None and self.early.look():
            return ()
        score, asked = self.accumulator.score, set(self.positions)
        rest = (i for i in range(len(self.accumulator.samples)) if i not in asked)
        return array("q", (i for i in chain(self.positions, rest) if score(i) is None))
