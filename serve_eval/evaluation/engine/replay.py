"""Give an accumulator the records of a journal: what earlier sessions heard, or all there is to score again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future

from serve_eval.evaluation.engine.accumulator import ScoreAccumulator
from serve_eval.evaluation.engine.scoring import Grade
from serve_eval.evaluation.storage.journal import Journal, Record
from serve_eval.processes.bounded_call import Unfinished

AHEAD = 16
"""Answers of a journal that are given to other processes ahead."""


def replay(journal: Journal, tally: ScoreAccumulator, *, failures_stand: bool = False) -> int:
    """Gives the tally what the journal holds; returns how many responses."""
    return 0 if journal.empty else take(journal.records(), tally, failures_stand=failures_stand)


def take(records: Iterable[Record], tally: ScoreAccumulator, *, failures_stand: bool = False) -> int:
    """Gives the tally these records, those of other samples left out; returns how many responses. What failed is asked
    again, and so counts in the traffic alone, unless `failures_stand`."""
    index = {sample.id: i for i, sample in enumerate(tally.samples)}
    responses = 0
    for record, graded in _graded(records, index, tally):
        i = index.get(record.id)
        if i is None:
            continue
        if record.response is not None:
            tally.add(i, record.response, graded)
            responses += 1
        elif record.failure is not None and failures_stand:
            tally.add(i, record.failure)
        elif record.failure is not None:
            tally.count(record.failure)
    return responses


def _graded(
    records: Iterable[Record], index: Mapping[str, int], tally: ScoreAccumulator
) -> Iterator[tuple[Record, Grade | Unfinished | None]]:
    """The records in their order, with their grades where those are had from other processes: some are asked for
    ahead, so that these have something to do."""
    ahead: deque[tuple[Record, Future[Grade | Unfinished] | None]] = deque()
    for record in records:
        i = index.get(record.id)
        future = None if record.response is None or i is None else tally.scoring(i, record.response)
        ahead.append((record, future))
        while ahead and (ahead[0][1] is None or len(ahead) > AHEAD):
            first, waited = ahead.popleft()
            yield first, None if waited is None else waited.result()
    for first, waited in ahead:
        yield first, None if waited is None else waited.result()
