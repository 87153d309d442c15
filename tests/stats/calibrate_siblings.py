"""Measure how often `verify` accuses healthy servers and finds faults, as Markdown tables.

Distances from the reference are drawn, and every rule of `serve_eval verify` judges them as in a
command: rounds of 20 probes, the floor from the siblings' first 60, at most 200 probes. Part of
`make calibrate`; seeded, printed, never asserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from serve_eval.evaluation.probes.evidence import ProbeEvidence
from serve_eval.evaluation.probes.floor import find_floor
from serve_eval.evaluation.probes.limits import DistanceLimits
from serve_eval.schema import ProbeDistance
from serve_eval.schema import VerificationOutcome as Outcome

ROUND, FIRST, PROBES, EXTRA = 20, 60, 200, 300
TRIALS, CONFIDENCE = 1000, 0.95
RED = (Outcome.ANOTHER, Outcome.FAULT)
Nats = NDArray[numpy.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A server's numerics: log-probabilities are normal around those of the reference's weights.

    `sd` is their spread in nats, `heavy` the degrees of freedom of Student's t in place of the
    normal distribution, `flips` the share of probes at which experts flip, by a nat on average,
    `traffic` the spread of each single request, and `state` the share of requests that are answered
    from another state, by the distances of blocks of other requests.
    """

    sd: float = 0.0
    heavy: float | None = None
    flips: float = 0.0
    traffic: float = 0.0
    state: float = 0.0
    transient: bool = False


STATE_NATS, STATE_SPREAD = 1.6, 0.88
"""Median of the distances of another state, and the spread of their logarithm: as measured with
vLLM on blocks of another size (median 1.6, largest 11 of 500)."""


def draw(random: numpy.random.Generator, system: System, probes: int) -> tuple[Nats, Nats]:
    """Return a system's distances from the reference, and those of the other state (0: none)."""
    shape = (2, probes)
    normal = random.standard_normal(shape)
    if system.heavy is not None:
        normal = random.standard_t(system.heavy, shape)
    moved = system.sd * normal
    if system.traffic:
        moved += system.traffic * numpy.sqrt(2) * random.standard_normal(shape)
    nats = numpy.abs(moved).max(axis=0)
    flipped = random.random(probes) < system.flips
    nats = numpy.where(flipped, numpy.maximum(nats, random.exponential(1.0, probes)), nats)
    size = STATE_NATS * numpy.exp(STATE_SPREAD * random.standard_normal(probes))
    state = numpy.where(random.random(probes) < system.state, size, 0.0)
    return numpy.maximum(nats, state), state


def judge(
    random: numpy.random.Generator,
    server: System,
    siblings: Sequence[System],
    probes: int = PROBES,
) -> ProbeEvidence:
    """Draw a command, and return what its rules say about the server."""
    own, state = draw(random, server, probes)
    asked = max(EXTRA, probes)
    healthy = [draw(random, one, asked)[0] for one in siblings]
    first = [one[:FIRST].tolist() for one in healthy]
    limits = DistanceLimits(
        noise=0.0,
        step=0.0,
        floor=max(map(find_floor, first)),
        measured=True,
        typical=float(numpy.median(numpy.array(first))),
    )
    found = ProbeEvidence(limits=limits)
    found.paired.siblings = len(siblings)
    for number in range(probes):
        nats = float(own[number])
        again: tuple[float, ...] = ()
        if nats > limits.far and found.far < 3 and not (server.transient and state[number]):
            again = (nats,) * 3
        found.add(
            ProbeDistance(
                probe="",
                nats=nats,
                repeats=again,
                sibling_nats=tuple(float(one[number]) for one in healthy),
            )
        )
        if (number + 1) % ROUND == 0 and found.is_settled(probes):
            break
    found.ended = True
    if found.lacks_answers:
        found.healthy = [float(nats) for one in healthy for nats in one]
    return found
