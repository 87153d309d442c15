"""The offset between the clocks of a server and of ours, and the pairs of request and record that
it joins.

`candidates` finds offsets by a vote of all pairs, `fit` says what one of them joins and how well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from serve_eval.evaluation.attribution.record import WorkerRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

BIN_S = 0.002
"""Width of the bins of the vote."""
LONGEST_JITTER_S = 0.1
LEAST_JITTER_S = 0.0005
"""By how much the way of a request to the server may vary at most, and is taken to vary at
least."""
ROUNDS = 4
EDGE, EDGE_S = 0.05, 0.001
"""Tolerated share and size of the seeming excess of a record over its request."""


def candidates(offsets: NDArray[Any]) -> list[float]:
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


class Fit(NamedTuple):
    """What an offset joins: `pairs` of request and record, each at most once, those apart the least
    first; `cost_s` is how far apart a record is from its request on average. `apart` has all pairs
    in question.
    """

    offset_s: float
    pairs: dict[int, tuple[float, int]]
    apart: list[tuple[float, int, int]]
    jitter_s: float
    cost_s: float

    def sure(self, block: Sequence[WorkerRecord]) -> dict[int, int]:
        """The records of requests, but for those where another one fits about as well and names
        other servers, or where another request may be the record's that has none. A record that is
        surely another's is no rival.
        """
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


def fit(
    offset: float,
    offsets: NDArray[Any],
    longer: NDArray[Any],
    possible: NDArray[Any],
    block: Sequence[WorkerRecord],
) -> Fit | None:
    """What an offset joins, once it is put right by the middle of what it joins. None: nothing.

    `offsets` are those at which a request and a record would begin together, `longer` is by how
    much more time the request took. A request began before its record and ended after it: what that
    is on two clocks, the pairs that lie closest together tell.
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
        gaps = numpy.fmax(
            numpy.abs(begun - offset), numpy.abs(more - usual)
        )  # what is not known does not count
        chosen = _greedy(rows, columns, numpy.where(inside, gaps, numpy.inf))
        if not len(chosen):
            return None
        offset = float(numpy.median(begun[chosen]))
        close = chosen[gaps[chosen] <= numpy.quantile(gaps[chosen], 0.75)]
        last = float(numpy.quantile(begun[close], 1.0 - EDGE))
        ends = begun + more - last
        inside = ~(
            (begun > last + EDGE_S) | (ends < _by_server(servers, ends, close, EDGE) - EDGE_S)
        )
    pairs = {int(columns[k]): (float(gaps[k]), int(rows[k])) for k in chosen.tolist()}
    apart = list(
        zip(gaps[inside].tolist(), rows[inside].tolist(), columns[inside].tolist(), strict=True)
    )
    gaps_of = gaps[chosen]
    jitter = min(LONGEST_JITTER_S, max(LEAST_JITTER_S, float(numpy.quantile(gaps_of, 0.75))))
    cost = (float(gaps_of.sum()) + LONGEST_JITTER_S * (len(block) - len(pairs))) / len(block)
    return Fit(offset, pairs, apart, jitter, max(cost, LEAST_JITTER_S))


def _greedy(rows: NDArray[Any], columns: NDArray[Any], gaps: NDArray[Any]) -> NDArray[Any]:
    """Which pairs to take, the closest first, so that each record and each request is taken once at
    most.
    """
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


def _by_server(
    servers: NDArray[Any], values: NDArray[Any], chosen: NDArray[Any], share: float
) -> NDArray[Any]:
    """For every pair a quantile of the values of the chosen pairs of its generation server, whose
    clock may be off by a little; NaN where it tells none.
    """
    import numpy

    found = numpy.full(len(servers), numpy.nan)
    known = chosen[~numpy.isnan(values[chosen])]
    for server in numpy.unique(servers[known]):
        found[servers == server] = numpy.quantile(values[known[servers[known] == server]], share)
    return found
