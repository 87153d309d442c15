"""Whose record is whose request: what an orchestrator tells of its requests, beside what we know of ours. Pure.

A record holds the servers of a request. Where it holds an id that an answer carried too, that joins them. Else times
do: the records' are on the server's monotonic clock and ours on our own, and both stand still against each other, so
that one offset, found by a vote, joins all of a stretch of time. A request is joined only to a record that fits best
both ways, while every other record that fits about as well names the same servers.

**Why a wrong join cannot accuse a healthy worker.** The join sees times and servers, and never an answer: where all
workers are alike, answers are still dealt to them without regard to what they are worth, and the test of the table is
exact for any such dealing. Where one worker is bad, a wrong join moves a bad answer of it to another one and another's
good answer to it: its share falls towards the mean and theirs rise towards it, but none beyond, as long as most joins
are right. That they are is what the vote is for: an offset that joins less than half of the records, or hardly better
than another one (requests at a fixed rate look alike when they are shifted by one), joins none.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray

IDS, TIMES = "ids", "times"
METRICS, TRACES = "metrics of the answers", "request traces"
"""What joins a record to a request. The last two are exact; see `exact_joining`."""
BLOCK = 400
"""Records that one offset is found for: clocks of two machines run apart by some milliseconds in an hour."""
LEAST = 12
"""Records from which on there is a vote."""
BIN_S = 0.002
"""Width of the bins of the vote."""
LONGEST_JITTER_S = 0.1
LEAST_JITTER_S = 0.0005
"""By how much the way of a request to the server may vary at most, and is taken to vary at least."""
SLACK_S = 2.0
"""By how much later than it could be a record may be read."""
OVERHEAD_S = 0.25
"""By how much longer a request may take to us than to the server, beside a tenth of its time."""
RIVAL = 1.5
"""A second offset by which records lie apart from requests by less than so many times as by the first makes both of
them doubtful."""
ROUNDS = 4
EDGE, EDGE_S = 0.05, 0.001
"""So many of the pairs, and by so much, may seem to lie outside of each other."""
ID_LENGTH = 8
"""Characters from which on an id is no count that starts again with every server."""


LONGEST_NAME = 200


class Sent(NamedTuple):
    """An attempt of ours: when it began and ended, and what its answer is called (None: no answer, or no name)."""

    start_s: float
    end_s: float
    answer_id: str | None = None


class Record(NamedTuple):
    """What the server tells of a request. `arrival_s` and `finish_s` are on its clock, `read_s` (after the reading
    before, at `read_after_s`) on ours. Times in seconds, None where it does not tell."""

    context: str | None
    generation: str | None
    arrival_s: float | None
    finish_s: float | None
    ids: frozenset[str]
    kv_transfer_s: float | None
    kv_bytes: float | None
    read_after_s: float
    read_s: float

    @property
    def servers(self) -> tuple[str | None, str | None]:
        return self.context, self.generation


def record(told: object, read_after_s: float, read_s: float) -> Record | None:
    """A record as an orchestrator tells it; None for what names no server. Whatever else is missing or odd is left
    out: the shape varies with the versions."""
    if not isinstance(told, dict):
        return None
    context, generation = (_text(told.get(name)) for name in ("ctx_server", "gen_server"))
    if context is None and generation is None:
        return None
    legs = [_mapping(told.get(f"{leg}_perf_metrics")) for leg in ("ctx", "gen")]
    timings = [_mapping((_mapping(leg.get("perf_metrics")) or leg).get("timing_metrics")) for leg in legs]
    of_generation = timings[1]
    began, ended = (_number(of_generation.get(f"kv_cache_transfer_{edge}")) for edge in ("start", "end"))
    size = _number(of_generation.get("kv_cache_size"))
    moved = size if "kv_cache_size" in of_generation else began  # main tells the times alone, and 0 of none
    ids = {
        str(value)
        for part in (told, *legs)
        for name, value in part.items()
        if name.endswith("request_id") and isinstance(value, str | int)
    }
    return Record(
        context=context,
        generation=generation,
        arrival_s=_number(told.get("disagg_server_arrival_time")),
        finish_s=_number(of_generation.get("last_token_time")),
        ids=frozenset(one for one in ids if len(one) >= ID_LENGTH),
        kv_transfer_s=ended - began if moved and began is not None and ended is not None and ended >= began else None,
        kv_bytes=size or None,
        read_after_s=read_after_s,
        read_s=read_s,
    )


def join(sent: Sequence[Sent], records: Sequence[Record]) -> dict[int, tuple[Record, str]]:
    """By the position of what was sent: its record, and what joined them, IDS or TIMES."""
    found = {i: (one, IDS) for i, one in _by_ids(sent, records).items()}
    taken = {id(one) for one, _ in found.values()}
    left = [one for one in records if id(one) not in taken]
    open_ones = [i for i in range(len(sent)) if i not in found]
    by_times = _by_times([sent[i] for i in open_ones], left)
    return {**found, **{open_ones[i]: (one, TIMES) for i, one in by_times.items()}}


def _by_ids(sent: Sequence[Sent], records: Iterable[Record]) -> dict[int, Record]:
    """Answers that are called by an id of a record, or by a name of which it is a part between signs."""
    named: dict[str, list[int]] = defaultdict(list)
    for i, one in enumerate(sent):
        if one.answer_id is not None:
            for name in {one.answer_id, *re.split(r"[^0-9A-Za-z]", one.answer_id)}:
                named[name].append(i)
    found: dict[int, list[Record]] = defaultdict(list)
    for told in records:
        for i in {i for name in told.ids for i in named.get(name, ())}:
            found[i].append(told)
    owners = Counter(id(told) for of_one in found.values() for told in of_one)
    return {i: of_one[0] for i, of_one in found.items() if len(of_one) == 1 and owners[id(of_one[0])] == 1}


def _by_times(sent: Sequence[Sent], records: Iterable[Record]) -> dict[int, Record]:
    """Joins records that have an arrival, in blocks of the order of their arrivals."""
    timed = sorted((one for one in records if one.arrival_s is not None), key=lambda one: one.arrival_s or 0.0)
    order = sorted(range(len(sent)), key=lambda i: sent[i].start_s)
    starts = [sent[i].start_s for i in order]
    longest_s = max((one.end_s - one.start_s for one in sent), default=0.0)
    kept = _trusted_finishes(timed, longest_s)
    blocks = max(1, -(-len(kept) // BLOCK))
    found: dict[int, Record] = {}
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


def _trusted_finishes(records: Sequence[Record], longest_s: float) -> list[Record]:
    """The records without the finishes of generation servers whose clock is another one than the front door's."""
    odd: Counter[str | None] = Counter()
    seen: Counter[str | None] = Counter()
    for one in records:
        if one.finish_s is not None:
            seen[one.generation] += 1
            odd[one.generation] += not 0.0 <= one.finish_s - (one.arrival_s or 0.0) <= longest_s + OVERHEAD_S
    return [one._replace(finish_s=None) if 2 * odd[one.generation] > seen[one.generation] else one for one in records]


def _bracket(block: Sequence[Record], longest_s: float) -> tuple[float, float]:
    """Between which offsets, to be added to the server's times, the right one lies: a record is read when its request
    has ended, and soon then."""
    lows, highs = [], []
    for one in block:
        ended = one.arrival_s if one.finish_s is None else one.finish_s
        assert ended is not None
        lows.append(one.read_after_s - ended - (longest_s if one.finish_s is None else 0.0) - SLACK_S)
        highs.append(one.read_s - ended + LONGEST_JITTER_S)
    return median(lows), min(max(highs), median(highs) + SLACK_S)


def _of_block(sent: Sequence[Sent], block: Sequence[Record], low: float, high: float) -> dict[int, Record]:
    import numpy

    if len(block) < LEAST or len(sent) < LEAST:
        return {}
    starts, ends = (numpy.array(column) for column in zip(*((s.start_s, s.end_s) for s in sent), strict=True))
    arrivals = numpy.array([one.arrival_s for one in block], dtype=float)
    took = numpy.array([numpy.nan if r.finish_s is None else r.finish_s - (r.arrival_s or 0.0) for r in block])
    offsets = starts[None, :] - arrivals[:, None]
    longer = (ends - starts)[None, :] - took[:, None]
    possible = (low <= offsets) & (offsets <= high)
    possible &= ~(numpy.abs(longer) > OVERHEAD_S + 0.1 * (ends - starts)[None, :])
    fits = [_fitted(offset, offsets, longer, possible, block) for offset in _candidates(offsets[possible])]
    found = sorted((one for one in fits if one is not None), key=lambda one: one.cost_s)
    if not found or 2 * len(found[0].pairs) < min(len(block), len(sent)):
        return {}
    best = found[0]
    for other in found[1:]:
        if abs(other.offset_s - best.offset_s) > 4 * best.jitter_s and other.cost_s < RIVAL * best.cost_s:
            return {}
    return {j: block[i] for j, i in best.sure(block).items()}


def _candidates(offsets: NDArray[Any]) -> list[float]:
    """The offsets that most pairs have, at most three that lie apart."""
    import numpy

    if not len(offsets):
        return []
    bins = numpy.floor(offsets / BIN_S).astype(int)
    votes = numpy.bincount(bins - bins.min())
    smooth = numpy.convolve(votes, numpy.ones(5), "same")
    chosen: list[float] = []
    for place in numpy.argsort(-smooth, kind="stable")[:200]:
        middle = (bins.min() + int(place) + 0.5) * BIN_S
        near = offsets[numpy.abs(offsets - middle) <= 2.5 * BIN_S]
        if len(near) and all(abs(middle - other) > 4 * BIN_S for other in chosen):
            chosen.append(float(numpy.median(near)))
        if len(chosen) == 3:
            break
    return chosen


class _Fit(NamedTuple):
    """What an offset joins: `pairs` of request and record, each at most once, those apart the least first; `cost_s` is
    how far apart a record is from its request on average. `apart` has all pairs in question."""

    offset_s: float
    pairs: dict[int, tuple[float, int]]
    apart: list[tuple[float, int, int]]
    jitter_s: float
    cost_s: float

    def sure(self, block: Sequence[Record]) -> dict[int, int]:
        """The records of requests, but for those where another one fits about as well and names other servers, or
        where another request may be the record's that has none. A record that is surely another's is no rival."""
        of_record: dict[int, list[tuple[float, int]]] = defaultdict(list)
        of_request: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for gap, i, j in self.apart:
            of_record[i].append((gap, j))
            of_request[j].append((gap, i))
        found: dict[int, int] = {}
        owned: dict[int, int] = {}
        within = set(self.apart)
        while True:
            before = len(found)
            for j, (gap, i) in self.pairs.items():
                if j in found or (gap, i, j) not in within:
                    continue
                most = gap + self.jitter_s
                rivals = (k for other, k in of_request[j] if other <= most and owned.get(k, j) == j)
                same = all(block[k].servers == block[i].servers for k in rivals)
                if same and all(k in self.pairs for other, k in of_record[i] if other <= most):
                    found[j], owned[i] = i, j
            if len(found) == before:
                return found


def _fitted(
    offset: float, offsets: NDArray[Any], longer: NDArray[Any], possible: NDArray[Any], block: Sequence[Record]
) -> _Fit | None:
    """What an offset joins, once it is put right by the middle of what it joins. None: nothing.

    `offsets` are those at which a request and a record would begin together, `longer` is by how much more time the
    request took. A request began before its record and ended after it: what that is on two clocks, the pairs that lie
    closest together tell.
    """
    import numpy

    rows, columns = numpy.nonzero(possible & (numpy.abs(offsets - offset) <= LONGEST_JITTER_S))
    if not len(rows):
        return None
    begun, more = offsets[rows, columns], longer[rows, columns]
    names = sorted({str(one.generation) for one in block})
    servers = numpy.array([names.index(str(one.generation)) for one in block])[rows]
    inside = numpy.ones(len(rows), dtype=bool)
    for _ in range(ROUNDS):
        usual = _by_server(servers, more, _nearest(rows, numpy.abs(begun - offset)), 0.5)
        gaps = numpy.fmax(numpy.abs(begun - offset), numpy.abs(more - usual))  # what is not known does not count
        chosen = _greedy(rows, columns, numpy.where(inside, gaps, numpy.inf))
        if not len(chosen):
            return None
        offset = float(numpy.median(begun[chosen]))
        close = chosen[gaps[chosen] <= numpy.quantile(gaps[chosen], 0.75)]
        last = float(numpy.quantile(begun[close], 1.0 - EDGE))
        ends = begun + more - last
        inside = ~((begun > last + EDGE_S) | (ends < _by_server(servers, ends, close, EDGE) - EDGE_S))
    pairs = {int(columns[k]): (float(gaps[k]), int(rows[k])) for k in chosen.tolist()}
    apart = list(zip(gaps[inside].tolist(), rows[inside].tolist(), columns[inside].tolist(), strict=True))
    gaps_of = gaps[chosen]
    jitter = min(LONGEST_JITTER_S, max(LEAST_JITTER_S, float(numpy.quantile(gaps_of, 0.75))))
    cost = (float(gaps_of.sum()) + LONGEST_JITTER_S * (len(block) - len(pairs))) / len(block)
    return _Fit(offset, pairs, apart, jitter, max(cost, LEAST_JITTER_S))


def _greedy(rows: NDArray[Any], columns: NDArray[Any], gaps: NDArray[Any]) -> NDArray[Any]:
    """Which pairs to take, the closest first, so that each record and each request is taken once at most."""
    import numpy

    order = numpy.argsort(gaps, kind="stable")
    chosen: list[int] = []
    used: tuple[set[int], set[int]] = (set(), set())
    for k in order[: int(numpy.isfinite(gaps).sum())].tolist():
        if rows[k] not in used[0] and columns[k] not in used[1]:
            chosen.append(k)
            used[0].add(rows[k])
            used[1].add(columns[k])
    return numpy.array(chosen, dtype=int)


def _nearest(rows: NDArray[Any], gaps: NDArray[Any]) -> NDArray[Any]:
    """The pair of each record that begins closest together."""
    import numpy

    order = numpy.argsort(gaps, kind="stable")
    return order[numpy.unique(rows[order], return_index=True)[1]]


def _by_server(servers: NDArray[Any], values: NDArray[Any], chosen: NDArray[Any], share: float) -> NDArray[Any]:
    """For every pair a quantile of the values of the chosen pairs of its generation server, whose clock may be off by a
    little; NaN where it tells none."""
    import numpy

    found = numpy.full(len(servers), numpy.nan)
    known = chosen[~numpy.isnan(values[chosen])]
    for server in numpy.unique(servers[known]):
        found[servers == server] = numpy.quantile(values[known[servers[known] == server]], share)
    return found


def _text(told: object) -> str | None:
    return told[:LONGEST_NAME] if isinstance(told, str) and told else None


def _number(told: object) -> float | None:
    return float(told) if isinstance(told, int | float) and not isinstance(told, bool) and abs(told) < 2**53 else None


def _mapping(told: object) -> dict[str, Any]:
    return told if isinstance(told, dict) else {}
