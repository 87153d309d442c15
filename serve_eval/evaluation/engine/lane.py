"""Hold one task during a run: its samples in order, and the destination of their results."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.plan.chosen_samples import ShardPart
from serve_eval.schema import Failure, Order, Progress, Prompt, Response, Sample
from serve_eval.storage.journal import Journal, Record

if TYPE_CHECKING:
    from serve_eval.evaluation.engine.talk import KeptExchanges
    from serve_eval.storage.answer_origins import Proofs


class StoppingRule(Protocol):
    """Decide whether the verdict of a task is certain while it is asked.

    `look` returns True if no more answers are needed. `restart` starts again from the first sample.
    """

    def look(self) -> bool: ...

    def restart(self) -> None: ...


class CourseObserver(Protocol):
    """Watch a task while it is asked and report findings.

    `restart` starts again from the first sample.
    """

    async def look(self) -> None: ...

    def restart(self) -> None: ...


class Lane:
    """One task of a run: the samples to ask, by position in the order of their starts.

    The lane ends when `early` decides it. `meet` is awaited before each sample is sent. `alarm`
    looks at the lane from time to time. The samples of which an answer was withdrawn are asked
    `alone`, each on a connection of its own, so that their next answer needs no proof. `left`
    counts the samples without a result, and `waiting` those not sent yet. `proofs` are the
    session's findings about connections, for conversations that an earlier session began.
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
        alone: Iterable[int] = (),
    ) -> None:
        self.name, self.accumulator, self.journal, self.early, self.meet = (
            name,
            accumulator,
            journal,
            early,
            meet,
        )
        self.alarm, self.alone = alarm, set(alone)
        self.asking: set[asyncio.Task[None]] = set()
        self._soon: deque[int] = deque()
        self.proofs: Proofs | None = None
        self._kept: KeptExchanges | None = None
        self.refill(positions)

    def refill(self, positions: Sequence[int]) -> None:
        """Set the samples to ask."""
        self.positions, self.begun, self.decided = positions, False, False
        self._soon.clear()
        self.left = self.waiting = len(positions)

    def iterate_starts(self, progress: Progress | None) -> Iterator[int]:
        """Yield the positions until the lane is decided. The first one starts its progress."""
        self.begun = True
        if progress is not None:
            accumulator = self.accumulator
            progress.begin(self.name, len(accumulator.samples), accumulator.scored)
            self.show(progress)
        rest = iter(self.positions)
        while not self.decided:
            i = self._soon.popleft() if self._soon else next(rest, None)
            if i is None:
                return
            yield i

    def show(self, progress: Progress) -> None:
        """Show the results so far."""
        came = self.accumulator
        progress.update(self.name, came.scored, came.count_failed_kinds(), came.running_value)

    def end_progress(self, progress: Progress | None) -> None:
        """Show the last results, and that no more come."""
        if progress is not None:
            self.show(progress)
            progress.end(self.name)

    def keep(self, sample: Sample, result: Response | Failure) -> None:
        """Write a result to the journal. Raises JournalError if that fails."""
        if isinstance(result, Response):
            self.journal.append(Record(id=sample.id, response=result))
        else:
            self.journal.append(Record(id=sample.id, failure=result))

    def keep_exchanges(self) -> KeptExchanges:
        """Return the finished requests of the conversations of the lane."""
        from serve_eval.evaluation.engine.talk import KeptExchanges

        if self._kept is None:
            assert self.proofs is not None
            self._kept = KeptExchanges(self.journal, self.proofs)
        return self._kept

    def forget(self, responses: Mapping[str, Response]) -> None:
        """Remove these answers, which are given by sample id.

        Their samples are asked again next if `early` looks at the lane, since it examines no sample
        behind a gap: one withdrawn answer would make it wait for all the others. If `meet` waits
        for another run, which asks no sample twice, they are asked at the end.
        """
        for i, sample in enumerate(self.accumulator.samples):
            if (response := responses.get(sample.id)) is not None:
                self.accumulator.forget(i, response)
                self.alone.add(i)
                if self.early is not None and self.meet is None and self.begun:
                    self._soon.append(i)
                    self.left, self.waiting = self.left + 1, self.waiting + 1
        for looking in (self.early, self.alarm):
            if looking is not None:
                looking.restart()

    def list_missing(self) -> Sequence[int]:
        """Return the samples without a result, in the order of their starts.

        Returns none if the lane is decided without them.
        """
        if self.early is not None and self.early.look():
            return ()
        score, asked = self.accumulator.score, set(self.positions)
        rest = (i for i in range(len(self.accumulator.samples)) if i not in asked)
        return array("q", (i for i in chain(self.positions, rest) if score(i) is None))


def task_seed(seed: int, task: str) -> str:
    """Return the seed for the order of one task, derived from the run's seed."""
    return f"{seed}:order:{task}"


def arrange(
    samples: Sequence[Sample],
    positions: Iterable[int],
    order: Order,
    seed: str,
    part: ShardPart | None = None,
) -> array[int]:
    """Return the positions in the order in which their samples start.

    Ties keep the order of the protocol. `longest` sorts by the length of the target: for targets
    that are worked solutions, as in GSM8K, long targets mean long answers. `random` gives the same
    order for the same seed. For some of the positions, it is the order of all positions without the
    others. If the samples are a `part` of those of a run, repeated as a whole any number of times,
    it is the order of the whole run without the others.
    """
    chosen = array("q", positions)
    if order == "random":
        places = (
            _shuffle(len(samples), seed)
            if part is None
            else _shuffle_part(part, len(samples), seed)
        )
        if len(chosen) == len(samples):
            return places[:]
        wanted = bytearray(len(samples))
        for i in chosen:
            wanted[i] = 1
        return array("q", (i for i in places if wanted[i]))
    if order == "prefix":
        return array("q", sorted(chosen, key=lambda i: _text(samples[i].prompt)))
    if order == "longest":
        return array("q", sorted(chosen, key=lambda i: -len(samples[i].target)))
    return chosen


def list_group_keys(samples: Sequence[Sample]) -> list[Hashable] | None:
    """Return a key per sample, the same for samples of one group; None if no two share one."""
    from serve_eval.stats.clusters import cluster_keys

    return cluster_keys([sample.group for sample in samples])


def arrange_groups(keys: Sequence[Hashable], seed: str) -> tuple[array[int], array[int]]:
    """Return the positions by groups in a random order, and the sizes of the groups in that order.

    Positions of one key are a group. They follow each other in the order of the protocol, so that a
    server can use the text that they share again. The same seed gives the same order.
    """
    groups: dict[Hashable, array[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, array("q")).append(place)
    members = list(groups.values())
    drawn = [members[i] for i in _shuffle(len(members), seed)]
    return array("q", chain.from_iterable(drawn)), array("q", map(len, drawn))


@lru_cache(maxsize=1)
def _shuffle(count: int, seed: str) -> array[int]:
    """Return all positions in a random order.

    The cache serves a run that needs its order twice in a row: for the starts and for the alarm.
    """
    places = array("q", range(count))
    random.Random(seed).shuffle(places)
    return places


def forget_order() -> None:
    """Free the order of the last run, so that it does not stay while its page is made."""
    _shuffle.cache_clear()


def _shuffle_part(part: ShardPart, count: int, seed: str) -> array[int]:
    """Return all `count` positions of a part in the random order of the whole run."""
    size, repeats = len(part.places), count // len(part.places)
    here = array("q", [-1]) * (repeats * part.total)
    for i in range(count):
        here[part.places[i % size] + i // size * part.total] = i
    return array("q", (here[place] for place in _shuffle(len(here), seed) if here[place] >= 0))


def _text(prompt: Prompt) -> str:
    return (
        prompt
        if isinstance(prompt, str)
        else "\0".join(turn.role + "\0" + turn.text for turn in prompt)
    )
