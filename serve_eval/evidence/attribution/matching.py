"""Match an orchestrator's records with the attempts of a run's samples.

A record names the servers of a request. If it has an id that an answer has too, the id joins them.
Otherwise times do. The records' times are on the server's monotonic clock and ours on our own, with
a constant difference: one offset, found by a vote, joins all records of a period. A request is
joined only to a record that fits best in both directions, and only if every other record that fits
about as well names the same servers.

**Why a wrong join cannot accuse a healthy worker.** The join uses times and servers, never an
answer. If all workers are equal, answers are still assigned to them regardless of their quality,
and the test of the table is exact for any such assignment. If one worker is bad, a wrong join moves
one of its bad answers to another worker and a good answer to it. Its share falls towards the mean
and the others' rise towards it, but not beyond, as long as most joins are right. The vote ensures
that: an offset that joins less than half of the records, or hardly more than another offset
(requests at a fixed rate look alike when shifted by one), joins none.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from serve_eval.evidence.attribution.clock_offset import (
    LONGEST_JITTER_S,
    SentAttempt,
    WorkerRecord,
    candidates,
    fit,
)
from serve_eval.schema import Attempt, Response
from serve_eval.schema.base_url import find_address
from serve_eval.stats.contingency import CONTEXT, GENERATION
from serve_eval.storage.answer_origins import Served, read_traces
from serve_eval.storage.journal import Journal, Record

IDS, TIMES = "ids", "times"
METRICS, TRACES = "metrics of the answers", "request traces"
HEADERS = "response headers"
"""Ways to join a record to a request. The last three are exact; see `exact_matching` and
`named_servers`."""
BLOCK = 400
"""Records per offset: the clocks of two machines drift apart by some milliseconds per hour."""
LEAST = 12
"""Minimum number of records for a vote."""
SLACK_S = 2.0
"""Maximum delay, in seconds, between the end of a request and the reading of its record."""
OVERHEAD_S = 0.25
"""Seconds that a request may take longer for us than for the server, plus a tenth of its time."""
RIVAL = 1.5
"""Minimum ratio between the costs of the second-best and the best offset; below it, both are
rejected."""


def join(
    sent: Sequence[SentAttempt], records: Sequence[WorkerRecord]
) -> dict[int, tuple[WorkerRecord, str]]:
    """Return, by position in `sent`, the record and what joined it, IDS or TIMES."""
    found = {i: (one, IDS) for i, one in _by_ids(sent, records).items()}
    taken = {id(one) for one, _ in found.values()}
    left = [one for one in records if id(one) not in taken]
    open_ones = [i for i in range(len(sent)) if i not in found]
    by_times = _by_times([sent[i] for i in open_ones], left)
    return {**found, **{open_ones[i]: (one, TIMES) for i, one in by_times.items()}}


def _by_ids(
    sent: Sequence[SentAttempt], records: Iterable[WorkerRecord]
) -> dict[int, WorkerRecord]:
    """Return the records of answers whose id is a record's id or contains it between separators."""
    named: dict[str, list[int]] = defaultdict(list)
    for i, one in enumerate(sent):
        if one.answer_id is not None:
            for name in {one.answer_id, *re.split(r"[^0-9A-Za-z]", one.answer_id)}:
                named[name].append(i)
    found: dict[int, list[WorkerRecord]] = defaultdict(list)
    for told in records:
        for i in {i for name in told.ids for i in named.get(name, ())}:
            found[i].append(told)
    owners = Counter(id(told) for of_one in found.values() for told in of_one)
    return {
        i: of_one[0]
        for i, of_one in found.items()
        if len(of_one) == 1 and owners[id(of_one[0])] == 1
    }


def _by_times(
    sent: Sequence[SentAttempt], records: Iterable[WorkerRecord]
) -> dict[int, WorkerRecord]:
    """Join records that have an arrival time, in blocks sorted by it."""
    timed = sorted(
        (one for one in records if one.arrival_s is not None), key=lambda one: one.arrival_s or 0.0
    )
    order = sorted(range(len(sent)), key=lambda i: sent[i].start_s)
    starts = [sent[i].start_s for i in order]
    longest_s = max((one.end_s - one.start_s for one in sent), default=0.0)
    kept = _drop_untrusted_finishes(timed, longest_s)
    blocks = max(1, -(-len(kept) // BLOCK))
    found: dict[int, WorkerRecord] = {}
    for number in range(blocks):
        block = kept[number * len(kept) // blocks : (number + 1) * len(kept) // blocks]
        if not block:
            continue
        low, high = _bracket(block, longest_s)
        first, last = (block[edge].arrival_s or 0.0 for edge in (0, -1))
        near = order[bisect_left(starts, first + low) : bisect_right(starts, last + high)]
        for i, one in _of_block([sent[j] for j in near], block, low, high).items():
            found.setdefault(near[i], one)
    return found


def _drop_untrusted_finishes(
    records: Sequence[WorkerRecord], longest_s: float
) -> list[WorkerRecord]:
    """Remove finish times from generation servers on another clock than the orchestrator's."""
    odd: Counter[str | None] = Counter()
    seen: Counter[str | None] = Counter()
    for one in records:
        if one.finish_s is not None:
            seen[one.generation] += 1
            odd[one.generation] += (
                not 0.0 <= one.finish_s - (one.arrival_s or 0.0) <= longest_s + OVERHEAD_S
            )
    return [
        one._replace(finish_s=None) if 2 * odd[one.generation] > seen[one.generation] else one
        for one in records
    ]


def _bracket(block: Sequence[WorkerRecord], longest_s: float) -> tuple[float, float]:
    """Return the limits for the offset, in seconds to add to the server's times.

    A record is read after its request has ended, and soon after.
    """
    lows, highs = [], []
    for one in block:
        ended = one.arrival_s if one.finish_s is None else one.finish_s
        assert ended is not None
        lows.append(
            one.read_after_s - ended - (longest_s if one.finish_s is None else 0.0) - SLACK_S
        )
        highs.append(one.read_s - ended + LONGEST_JITTER_S)
    return median(lows), min(max(highs), median(highs) + SLACK_S)


def _of_block(
    sent: Sequence[SentAttempt], block: Sequence[WorkerRecord], low: float, high: float
) -> dict[int, WorkerRecord]:
    import numpy

    if len(block) < LEAST or len(sent) < LEAST:
        return {}
    starts, ends = (
        numpy.array(column) for column in zip(*((s.start_s, s.end_s) for s in sent), strict=True)
    )
    arrivals = numpy.array([one.arrival_s for one in block], dtype=float)
    took = numpy.array(
        [numpy.nan if r.finish_s is None else r.finish_s - (r.arrival_s or 0.0) for r in block]
    )
    offsets = starts[None, :] - arrivals[:, None]
    longer = (ends - starts)[None, :] - took[:, None]
    possible = (low <= offsets) & (offsets <= high)
    possible &= ~(numpy.abs(longer) > OVERHEAD_S + 0.1 * (ends - starts)[None, :])
    fits = [
        fit(offset, offsets, longer, possible, block) for offset in candidates(offsets[possible])
    ]
    found = sorted((one for one in fits if one is not None), key=lambda one: one.cost_s)
    if not found or 2 * len(found[0].pairs) < min(len(block), len(sent)):
        return {}
    best = found[0]
    for other in found[1:]:
        if (
            abs(other.offset_s - best.offset_s) > 4 * best.jitter_s
            and other.cost_s < RIVAL * best.cost_s
        ):
            return {}
    return {j: block[i] for j, i in best.sure(block).items()}


class LastAttempt(NamedTuple):
    """The attempt that ended a sample, with an answer or without."""

    task: str
    sample_id: str
    attempt: Attempt
    answered: bool

    @property
    def key(self) -> tuple[str, str, float]:
        """The task, the sample and the start, as `read_known` returns them."""
        return self.task, self.sample_id, self.attempt.start_s


def list_last_attempts(journals: Mapping[str, Journal], part: bytes = b"") -> Iterator[LastAttempt]:
    """Yield the last attempt of each outcome in the journals, which are by task.

    Skips records without `part`, and choices, since each has its own requests.
    """
    for task, journal in journals.items():
        for kept in journal.records(part):
            result = kept.response or kept.failure
            if result is None or not result.attempts:
                continue
            if kept.response is None or kept.response.choice_logprobs is None:
                answered = kept.response is not None
                yield LastAttempt(task, kept.id, result.attempts[-1], answered)


def read_known(folder: Path) -> set[tuple[str, str, float]]:
    """Return the attempts whose servers are known, by task, sample and start."""
    lines = (
        one
        for of_task in (read_traces(folder) or {}).values()
        for ones in of_task.values()
        for one in ones
    )
    return {(one.task, one.id, one.started_s) for one in lines}


class SampleAttempts(NamedTuple):
    """The start of the attempt that gave the result, the response, and the first attempt."""

    started_s: float
    response: Response | None
    first: Attempt


def summarise_attempts(records: Iterable[Record]) -> dict[str, SampleAttempts]:
    """Return the attempts of each sample, by its id.

    The result is the first response, or else the last failure.
    """
    found: dict[str, SampleAttempts] = {}
    for one in records:
        result, before = one.response or one.failure, found.get(one.id)
        if result is None or not result.attempts or (before and before.response is not None):
            continue
        first = before.first if before else result.attempts[0]
        found[one.id] = SampleAttempts(result.attempts[-1].start_s, one.response, first)
    return found


def find_servers(sample_id: str, attempt: Attempt) -> Served | None:
    """Return the servers of an attempt if its reply named them, be it an answer or an error."""
    if attempt.servers is None:
        return None
    return Served(
        task="",
        id=sample_id,
        started_s=attempt.start_s,
        context=attempt.servers.context,
        generation=attempt.servers.generation,
        how=HEADERS,
    )


def list_answering_roles(folder: Path) -> set[str]:
    """Return the roles of servers that answered a run under a name that is an address."""
    named = {
        (role, name)
        for of_task in (read_traces(folder) or {}).values()
        for lines in of_task.values()
        for one in lines
        for role, name in ((CONTEXT, one.context), (GENERATION, one.generation))
        if name is not None
    }
    return {role for role, name in named if find_address(name) is not None}
