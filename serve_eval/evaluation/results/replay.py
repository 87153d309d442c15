"""Feed the records of a journal to an accumulator, to resume a run or to score it again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future

from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.scoring import Grade
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.storage.journal import Journal, Record

AHEAD = 16
"""Number of answers that are sent to other processes ahead of time."""


def replay(journal: Journal, accumulator: ScoreAccumulator, *, failures_stand: bool = False) -> int:
    """Feed the records of the journal to the accumulator. Return the number of responses."""
    return (
        0 if journal.empty else take(journal.records(), accumulator, failures_stand=failures_stand)
    )


def take(
    records: Iterable[Record], accumulator: ScoreAccumulator, *, failures_stand: bool = False
) -> int:
    """Feed records to the accumulator, except those of other samples.

    Return the number of responses.

    A failed sample is asked again, so its failure counts only in the traffic. With
    `failures_stand`, it counts as a failure.
    """
    index = {sample.id: i for i, sample in enumerate(accumulator.samples)}
    responses = 0
    for record, graded in _grade_records(records, index, accumulator):
        i = index.get(record.id)
        if i is None:
            continue
        if record.response is not None:
            accumulator.add(i, record.response, graded)
            responses += 1
        elif record.failure is not None and failures_stand:
            accumulator.add(i, record.failure)
        elif record.failure is not None:
            accumulator.count(i, record.failure)
    return responses


def _grade_records(
    records: Iterable[Record], index: Mapping[str, int], accumulator: ScoreAccumulator
) -> Iterator[tuple[Record, Grade | Unfinished | None]]:
    """Yield the records in their order, with their grades if other processes compute them.

    Requests some grades ahead, to keep these processes busy.
    """
    ahead: deque[tuple[Record, Future[Grade | Unfinished] | None]] = deque()
    for record in records:
        i = index.get(record.id)
        future = (
            None
            if record.response is None or i is None
            else accumulator.start_scoring(i, record.response)
        )
        ahead.append((record, future))
        while ahead and (ahead[0][1] is None or len(ahead) > AHEAD):
            first, waited = ahead.popleft()
            yield first, None if waited is None else waited.result()
    for first, waited in ahead:
        yield first, None if waited is None else waited.result()
