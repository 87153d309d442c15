"""Match records to our requests by arrival times and ids. Pure.

Both sides report, to the nanosecond, when a request arrived at the orchestrator: the record, and
the answer or the trace with our X-Request-ID. The match is therefore exact under any load. If no
arrival time matches, the request's number in the trace may identify the record. A request that
matches two records, or a record that two requests match, is not joined.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from serve_eval.evidence.attribution.matching import METRICS, TRACES
from serve_eval.evidence.attribution.perf_files import Trace
from serve_eval.evidence.attribution.record import WorkerRecord
from serve_eval.schema import Attempt

DECIMALS = 9
"""Decimals of a time in an answer; fewer are accepted."""


class Joined(NamedTuple):
    """A record, the source that joined it, and the KV cache transfer time.

    The time is that of the answer, else that of the record.
    """

    record: WorkerRecord
    how: str
    kv_transfer_s: float | None


def join_exactly(
    attempts: Iterable[Attempt], records: Iterable[WorkerRecord], traces: Mapping[str, Trace]
) -> dict[str, Joined]:
    """Return the joined records by the X-Request-ID of the attempts."""
    index = _Index(records)
    named: dict[str, tuple[WorkerRecord, str]] = {}
    transfers: dict[str, float | None] = {}
    for attempt in attempts:
        name, timing, trace = attempt.request_id, attempt.timing, traces.get(attempt.request_id)
        transfers[name] = None if timing is None else timing.kv_transfer_s
        if timing is not None and (one := index.at(timing.arrival)) is not None:
            named[name] = one, METRICS
        elif trace is not None and (one := index.of(trace)) is not None:
            named[name] = one, TRACES
    owners = Counter(id(one) for one, _ in named.values())
    return {
        name: Joined(one, how, one.kv_transfer_s if transfers[name] is None else transfers[name])
        for name, (one, how) in named.items()
        if owners[id(one)] == 1
    }


class _Index:
    """Finds the record with a given arrival or number, if there is exactly one."""

    def __init__(self, records: Iterable[WorkerRecord]) -> None:
        self._records = list(records)
        self._by_arrival: dict[int, dict[str, list[WorkerRecord]]] = {}
        self._by_id: dict[str, list[WorkerRecord]] = defaultdict(list)
        for one in self._records:
            for name in one.ids:
                self._by_id[name].append(one)

    def at(self, arrival: str) -> WorkerRecord | None:
        decimals = len(arrival.partition(".")[2])
        if decimals not in self._by_arrival:
            found: dict[str, list[WorkerRecord]] = defaultdict(list)
            for one in self._records:
                if one.arrival_s is not None:
                    found[f"{one.arrival_s:.{decimals}f}"].append(one)
            self._by_arrival[decimals] = found
        return _only(self._by_arrival[decimals].get(arrival, []))

    def of(self, trace: Trace) -> WorkerRecord | None:
        found = None if trace.arrival_s is None else self.at(f"{trace.arrival_s:.{DECIMALS}f}")
        if found is None and trace.number is not None:
            found = _only(self._by_id.get(trace.number, []))
        return found


def _only(found: list[WorkerRecord]) -> WorkerRecord | None:
    return found[0] if len(found) == 1 else None
