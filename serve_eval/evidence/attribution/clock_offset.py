"""Estimate the offset between the server's clock and ours from the requests that both recorded.

`candidates` finds offsets by a vote of all pairs; `fit` returns the pairs at one offset and their
cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray


ID_LENGTH = 8
"""Minimum characters of an id; a shorter one may be a counter that restarts with every server."""
LONGEST_NAME = 200


class SentAttempt(NamedTuple):
    """An attempt: its start, its end and the id of its answer (None: no answer or no id)."""

    start_s: float
    end_s: float
    answer_id: str | None = None


class WorkerRecord(NamedTuple):
    """A request as the server records it.

    `arrival_s` and `finish_s` are on the server's clock, `read_s` and the time of the previous
    reading, `read_after_s`, on ours. Times are in seconds; None means not reported.
    """

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


def record(told: object, read_after_s: float, read_s: float) -> WorkerRecord | None:
    """Return an orchestrator's record, or None if it names no server.

    Other missing or malformed fields are left out: the format varies between versions.
    """
    if not isinstance(told, dict):
        return None
    context, generation = (_text(told.get(name)) for name in ("ctx_server", "gen_server"))
    if context is None and generation is None:
        return None
    legs = [_mapping(told.get(f"{leg}_perf_metrics")) for leg in ("ctx", "gen")]
    timings = [
        _mapping((_mapping(leg.get("perf_metrics")) or leg).get("timing_metrics")) for leg in legs
    ]
    of_generation = timings[1]
    began, ended = (
        _number(of_generation.get(f"kv_cache_transfer_{edge}")) for edge in ("start", "end")
    )
    size = _number(of_generation.get("kv_cache_size"))
    # The main branch reports only the times, and 0 if there was no transfer.
    moved = size if "kv_cache_size" in of_generation else began
    ids = {
        str(value)
        for part in (told, *legs)
        for name, value in part.items()
        if name.endswith("request_id") and isinstance(value, str | int)
    }
    return WorkerRecord(
        context=context,
        generation=generation,
        arrival_s=_number(told.get("disagg_server_arrival_time")),
        finish_s=_number(of_generation.get("last_token_time")),
        ids=frozenset(one for one in ids if len(one) >= ID_LENGTH),
        kv_transfer_s=(
            ended - began
            if moved and began is not None and ended is not None and ended >= began
            else None
        ),
        kv_bytes=size or None,
        read_after_s=read_after_s,
        read_s=read_s,
    )


def _text(told: object) -> str | None:
    return told[:LONGEST_NAME] if isinstance(told, str) and told else None


def _number(told: object) -> float | None:
    return (
        float(told)
        if isinstance(told, int | float) and not isinstance(told, bool) and abs(told) < 2**53
        else None
    )


def _mapping(told: object) -> dict[str, Any]:
    return told if isinstance(told, dict) else {}


BIN_S = 0.002
"""Width of the vote's bins, in seconds."""
LONGEST_JITTER_S = 0.1
LEAST_JITTER_S = 0.0005
"""Upper and lower limit, in seconds, of the assumed variation in a request's travel time to the
server."""
ROUNDS = 4
EDGE, EDGE_S = 0.05, 0.001
"""Tolerated share and size (seconds) of clock skew between a record and its request."""


def candidates(offsets: NDArray[Any]) -> list[float]:
    """Return up to three well separated offsets that most pairs share."""
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
    """The pairs at one offset.

    `pairs` maps a request to its gap and its record, each used at most once, smallest gaps first.
    `cost_s` is the mean gap between a record and its request. `apart` has all pairs in question.
    """

    offset_s: float
    pairs: dict[int, tuple[float, int]]
    apart: list[tuple[float, int, int]]
    jitter_s: float
    cost_s: float

    def sure(self, block: Sequence[WorkerRecord]) -> dict[int, int]:
        """Return the unambiguous records of requests.

        Drops a request if another record fits about as well and names other servers, or if another
        request without a record could own the record. A record that surely belongs to another
        request is not a rival.
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
    """Return the pairs at an offset, after correcting it by the median of its pairs, or None.

    `offsets` are those at which a request and a record would start together; `longer` is the extra
    time that the request took. A request starts before its record and ends after it. On two clocks,
    the closest pairs show what that means.
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
        )  # fmax ignores unknown values.
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
    """Return the chosen pairs, closest first, with each record and request used at most once."""
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
    """Return the pair of each record with the closest start."""
    import numpy

    order = numpy.argsort(gaps, kind="stable")
    return order[numpy.unique(rows[order], return_index=True)[1]]


def _by_server(
    servers: NDArray[Any], values: NDArray[Any], chosen: NDArray[Any], share: float
) -> NDArray[Any]:
    """Return, for every pair, a quantile of the chosen pairs' values for its generation server.

    A server's clock may be slightly off. NaN if the server has no values.
    """
    import numpy

    found = numpy.full(len(servers), numpy.nan)
    known = chosen[~numpy.isnan(values[chosen])]
    for server in numpy.unique(servers[known]):
        found[servers == server] = numpy.quantile(values[known[servers[known] == server]], share)
    return found
