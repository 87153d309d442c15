"""Measure the cost of each kind of requests for one process, over several rounds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from kinds import KINDS, MEDIUM, Flow, Kind, measure
from numpy.typing import NDArray
from queueing import percentile
from serving import Mode

IN_FLIGHT, STREAMS = 512, 128
"""Requests in flight for the cost of an answer, and streams, whose tokens come 5 ms apart."""
FEW = 16
"""Requests in flight for the differences between answers: the process handles few together."""
IDLE_LOAD, IDLE_IN_FLIGHT = 0.2, 32
LEVELS = (16, 64, 512, 4096)
MANY = 100_000
"""Samples for the growth of memory."""
OTHERS = ("growth_bytes", "around_s")
FIELDS = ("cpu_s", "user_s", "system_s", "wall_s")


@dataclass(slots=True)
class Cost:
    """The cost of a kind: values of each round by field, and times from which to draw.

    `busy` are CPU seconds of an answer (an event, if streamed) that finds the process busy, with
    the mean of IN_FLIGHT requests in flight. `idle` are those of one that finds it idle.
    `backlog_s` are those of a streamed answer whose tokens all arrive at once (0: not streamed).
    """

    kind: Kind
    rounds: dict[str, list[float]]
    sent_bytes: float
    received_bytes: float
    disk_bytes: float
    busy: NDArray[np.float64]
    idle: NDArray[np.float64]
    backlog_s: float = 0.0

    def at(self, name: str, percent: float) -> float:
        """Return a percentile of the rounds."""
        return percentile(self.rounds[name], percent)

    @property
    def cpu_s(self) -> float:
        """The median CPU time of an answer, in seconds."""
        return self.at("cpu_s", 50)


@dataclass(slots=True)
class Costs:
    """All that was measured of one process."""

    kinds: list[Cost] = field(default_factory=list)
    levels: list[tuple[int, float, float]] = field(default_factory=list)
    """Requests in flight, CPU seconds of a medium answer, peak memory in MB."""
    growth_bytes: float = 0.0
    around_s: float = 0.0
    """CPU seconds of a run of short answers that do not depend on their number."""

    def of(self, name: str) -> Cost:
        """Return the cost of a kind."""
        return next(cost for cost in self.kinds if cost.kind.name == name)

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        kinds = [
            {
                "name": cost.kind.name,
                "rounds": cost.rounds,
                "bytes": [cost.sent_bytes, cost.received_bytes, cost.disk_bytes],
                "busy": cost.busy.tolist(),
                "idle": cost.idle.tolist(),
                "backlog_s": cost.backlog_s,
            }
            for cost in self.kinds
        ]
        others = {name: getattr(self, name) for name in OTHERS}
        path.write_text(json.dumps({"kinds": kinds, "levels": self.levels, **others}), "ascii")

    @classmethod
    def load(cls, path: Path) -> Costs:
        """Read what `save` wrote."""
        told = json.loads(path.read_bytes())
        named = {kind.name: kind for kind in KINDS}
        kinds = [
            Cost(
                named[one["name"]],
                one["rounds"],
                *one["bytes"],
                np.array(one["busy"]),
                np.array(one["idle"]),
                one["backlog_s"],
            )
            for one in told["kinds"]
        ]
        levels = [(int(level), cpu_s, peak_mb) for level, cpu_s, peak_mb in told["levels"]]
        return cls(kinds, levels, **{name: told[name] for name in OTHERS})


def measure_costs(rounds: int, tell: Callable[[str], None]) -> Costs:
    """Measure every kind in each of the rounds, so that other work affects all alike."""
    flows: dict[str, list[tuple[Flow, Flow | None, Flow | None]]] = {k.name: [] for k in KINDS}
    levels: dict[int, list[Flow]] = {level: [] for level in LEVELS}
    backlogs = []
    for number in range(rounds):
        for kind in KINDS:
            tell(f"round {number + 1} of {rounds}: {kind.name}")
            flows[kind.name].append(_measure(kind))
        tell(f"round {number + 1} of {rounds}: tokens at once")
        backlogs.append(_measure_backlog())
        for level in LEVELS:
            tell(f"round {number + 1} of {rounds}: {level} in flight")
            n = max(MEDIUM.n, 12 * level)  # the last `level` answers make no request
            levels[level].append(measure(MEDIUM, in_flight=level, n=n))
    tell(f"{MANY} samples")
    many = measure(KINDS[0], in_flight=IN_FLIGHT, n=MANY, first=MANY // 5)
    return Costs(
        [_cost(kind, flows[kind.name], backlogs) for kind in KINDS],
        [
            (level, percentile([f.cpu_s for f in of], 50), percentile([f.peak_mb for f in of], 50))
            for level, of in levels.items()
        ],
        many.growth_bytes,
        percentile([one[0].around_s for one in flows[KINDS[0].name]], 50),
    )


def measure_little() -> Costs:
    """Measure one kind with few samples once, to see that it works."""
    flow = measure(KINDS[0], in_flight=8, n=60)
    cost = _cost(KINDS[0], [(flow, flow, flow)], [])
    return Costs([cost], [(8, flow.cpu_s, flow.peak_mb)], flow.growth_bytes, flow.around_s)


def _measure_backlog() -> float:
    kind = next(kind for kind in KINDS if kind.streamed)
    mode = Mode(tokens=kind.tokens)
    return measure(kind, in_flight=64, n=2 * kind.n, mode=mode).cpu_s


def _measure(kind: Kind) -> tuple[Flow, Flow | None, Flow | None]:
    """Return the flows with many in flight, with few, and of a process that is mostly idle."""
    if kind.streamed:
        return measure(kind, in_flight=STREAMS, n=kind.n), None, None
    many = measure(kind, in_flight=IN_FLIGHT, n=max(kind.n, 3 * IN_FLIGHT))
    few = measure(kind, in_flight=FEW, n=kind.n)
    latency_s = IDLE_IN_FLIGHT * many.cpu_s / IDLE_LOAD
    mode = Mode(tokens=kind.mode.tokens, spread=True, latency_ms=1000 * latency_s)
    return many, few, measure(kind, in_flight=IDLE_IN_FLIGHT, n=kind.n // 5, mode=mode)


def _cost(
    kind: Kind, flows: Sequence[tuple[Flow, Flow | None, Flow | None]], backlogs: Sequence[float]
) -> Cost:
    many = [flow for flow, _, _ in flows]
    rounds = {name: [getattr(flow, name) for flow in many] for name in FIELDS}
    mean = percentile(rounds["cpu_s"], 50) / kind.events
    busy = _spread([few for _, few, _ in flows if few is not None], mean)
    idle = _spread([idle for _, _, idle in flows if idle is not None], None)
    return Cost(
        kind,
        rounds,
        percentile([flow.sent_bytes for flow in many], 50),
        percentile([flow.received_bytes for flow in many], 50),
        percentile([flow.disk_bytes for flow in many], 50),
        busy if len(busy) else np.full(1, mean),
        idle if len(idle) else np.full(1, mean),
        percentile(backlogs, 50) if kind.streamed else 0.0,
    )


def _spread(flows: Sequence[Flow], mean: float | None) -> NDArray[np.float64]:
    """Return the times of the flows, scaled to `mean` if it is given."""
    if not flows:
        return np.empty(0)
    times = np.concatenate([flow.times_s for flow in flows])
    return times if mean is None else times * (mean / times.mean())
