"""Match an orchestrator's records with our requests, by ids or by times. Pure.

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
from collections.abc import Iterable, Sequence
from statistics import median

from serve_eval.evidence.attribution.clock_offset import LONGEST_JITTER_S, candidates, fit
from serve_eval.evidence.attribution.record import SentAttempt, WorkerRecord

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
