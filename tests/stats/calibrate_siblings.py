"""Measure how often `verify` accuses healthy servers and finds faults, as Markdown tables.

Distances from the reference are drawn, and every rule of `serve_eval verify` judges them as in a
command: rounds of 20 probes, the floor from the siblings' first 60, at most 200 probes. Part of
`make calibrate`; seeded, printed, never asserted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy
from scipy.stats import beta

from serve_eval.evidence.paired_probes import count_probes
from serve_eval.evidence.probe_floor import DistanceLimits, find_floor
from serve_eval.evidence.probe_judging import ProbeEvidence
from serve_eval.schema import ProbeDistance
from serve_eval.schema import VerificationOutcome as Outcome
from tests.stats.embedded_numerics import FLOAT32, OTHER_KERNELS, REFERENCE, SYSTEMS
from tests.stats.embedded_numerics import measure as measure_embedded

ROUND, FIRST, PROBES, EXTRA = 20, 60, 200, 300
REPEATED = 3
TRIALS, CONFIDENCE = 400, 0.95
EMBEDDED_TRIALS = 200
RED = (Outcome.ANOTHER, Outcome.FAULT)


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


def draw(random, system, probes):
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
    random,
    server,
    siblings,
    probes=PROBES,
):
    """Draw a command, and return what its rules say about the server."""
    own, state = draw(random, server, probes)
    healthy = [draw(random, one, max(EXTRA, probes))[0] for one in siblings]
    return judge_distances(own, healthy, once=(state > 0) & server.transient, probes=probes)


def judge_distances(own, healthy, *, once, probes=PROBES):
    """Return what the rules say of a server's distances, and of those of each sibling.

    Siblings may have more of them. Answers `once` far away do not return.
    """
    first = [one[:FIRST].tolist() for one in healthy]
    limits = DistanceLimits(
        noise=0.0,
        step=0.0,
        floor=max(map(find_floor, first)),
        measured=True,
        typical=float(numpy.median(numpy.array(first))),
    )
    found = ProbeEvidence(limits=limits)
    found.paired.siblings = len(healthy)
    for number in range(probes):
        nats = float(own[number])
        again = ()
        if nats > limits.far and found.far < REPEATED and not once[number]:
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


KERNELS = System(sd=0.02)
"""Healthy kernels: the spread that gives the median distance of compiled against eager vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A row of a table: its name, the server, its siblings and the most probes."""

    name: str
    server: System
    siblings: tuple[System, ...] = (KERNELS,)
    probes: int = PROBES


def flipping(share, system=KERNELS):
    """Return a system of which experts flip a share of the probes."""
    return replace(system, flips=share)


HEALTHY = (
    Cell(name="other kernels (sd .01), the sibling is a replica", server=System(sd=0.01),
         siblings=(System(),)),
    Cell(name="other kernels (sd .02), the sibling is a replica", server=KERNELS,
         siblings=(System(),)),
    Cell(name="traffic (sd .005), the sibling is a replica", server=System(traffic=0.005),
         siblings=(System(),)),
    Cell(name="traffic (sd .005) of both", server=System(traffic=0.005),
         siblings=(System(traffic=0.005),)),
    Cell(name="other kernels (sd .01)", server=System(sd=0.01), siblings=(System(sd=0.01),)),
    Cell(name="other kernels (sd .02)", server=KERNELS),
    Cell(name="other kernels, three siblings", server=KERNELS, siblings=(KERNELS,) * 3),
    Cell(name="heavy tails (t of 3, .02)", server=System(sd=0.02, heavy=3),
         siblings=(System(sd=0.02, heavy=3),)),
    Cell(name="heavy tails (t of 2, .01)", server=System(sd=0.01, heavy=2),
         siblings=(System(sd=0.01, heavy=2),)),
    Cell(name="1.5 times as noisy as the sibling", server=System(sd=0.03)),
    Cell(name="twice as noisy (.04, .02)", server=System(sd=0.04)),
    Cell(name="twice as noisy (.1, .05)", server=System(sd=0.1), siblings=(System(sd=0.05),)),
    Cell(name="twice as noisy, heavy tails (t of 3)", server=System(sd=0.04, heavy=3),
         siblings=(System(sd=0.02, heavy=3),)),
    *(
        Cell(name=f"experts flip {share:.0%}", server=flipping(share), siblings=(flipping(share),))
        for share in (0.02, 0.05, 0.1)
    ),
    Cell(name="experts flip 5 %, twice as noisy", server=flipping(0.05, System(sd=0.04)),
         siblings=(flipping(0.05),)),
    Cell(name="experts flip 5 %, of a replica none", server=flipping(0.05), siblings=(System(),)),
)  # fmt: skip
FAULTS = {
    "four-bit weights": System(sd=0.25),
    "W8A8": System(sd=0.09),
    "three times as noisy": System(sd=0.06),
    "2 % from another state": System(sd=0.02, state=0.02),
    "2 % of single requests, not again": System(sd=0.02, state=0.02, transient=True),
    "10 % from another state": System(sd=0.02, state=0.1),
}
"""Servers with a fault. The first two have the median distances that were measured with vLLM."""
FLIPS = (0.0, 0.05)


def list_faults():
    """Return the rows of faults, without and with healthy flips."""
    found = [
        Cell(
            name=name if not share else f"{name}, experts flip {share:.0%}",
            server=flipping(share, system),
            siblings=(flipping(share),),
        )
        for share in FLIPS
        for name, system in FAULTS.items()
    ]
    named = name_probes()
    ten = FAULTS["10 % from another state"]
    found.append(
        Cell(
            name=f"10 % from another state, experts flip 5 %, {named} probes as named",
            server=flipping(FLIPS[1], ten),
            siblings=(flipping(FLIPS[1]),),
            probes=named,
        )
    )
    return found


def name_probes():
    """Return the probes that `verify` names for a fault in 10 % with healthy flips of 5 %."""
    healthy = tuple(FLIPS[1] * float(numpy.exp(-nats)) for nats in (0.5, 0.25))
    return count_probes((healthy[0], healthy[1]), 0.1)


def interval(hits, trials):
    """Return the exact interval of a share. Source: Clopper and Pearson, 1934."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if not hits else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return low, high


def measure(cell):
    """Return the outcomes of the trials of a row, and the median number of probes."""
    random = numpy.random.default_rng([ord(letter) for letter in cell.name])
    trials = [judge(random, cell.server, cell.siblings, cell.probes) for _ in range(TRIALS)]
    outcomes = Counter(one.conclude() for one in trials)
    return outcomes, float(numpy.median([one.asked for one in trials]))


def write_row(cell):
    """Return a row: how often the outcome was red, with its interval, and each outcome."""
    outcomes, probes = measure(cell)
    return write_outcomes(cell.name, outcomes, f"{probes:.0f}")


def write_outcomes(name, outcomes, last):
    """Return the row of a name, which ends with `last`."""
    trials = outcomes.total()
    red = sum(outcomes[one] for one in RED)
    low, high = interval(red, trials)
    shares = " | ".join(
        f"{outcomes[one] / trials:.3f}"
        for one in (Outcome.ANOTHER, Outcome.FAULT, Outcome.UNDECIDED)
    )
    return f"| {name} | {red / trials:.3f} [{low:.3f}, {high:.3f}] | {shares} | {last} |"


def list_embedded():
    """Return the rows of the embedded model: its probes, drawn in random order for each trial."""
    pools = measure_embedded(REFERENCE, SYSTEMS)
    random, rows = numpy.random.default_rng(1), []
    for name, own in pools.items():
        sibling = pools[FLOAT32 if name == OTHER_KERNELS else OTHER_KERNELS]
        outcomes = Counter()
        for _ in range(EMBEDDED_TRIALS):
            order = random.permutation(len(own))
            drawn = own[order][:PROBES]
            once = numpy.zeros(len(drawn), dtype=bool)
            found = judge_distances(drawn, [sibling[order]], once=once, probes=len(drawn))
            outcomes[found.conclude()] += 1
        rows.append(write_outcomes(name, outcomes, f"{numpy.median(own):.2g}, {own.max():.2g}"))
    return rows


def tables():
    """Return the tables of healthy servers and of faults."""
    head = "accused | ANOTHER | FAULT | UNDECIDED | probes (median) |"
    line = "|---|---|--:|--:|--:|--:|"
    return "\n".join(
        [
            f"| healthy server | {head}",
            line,
            *map(write_row, HEALTHY),
            "",
            f"| fault | {head.replace('accused', 'red')}",
            line,
            *map(write_row, list_faults()),
            "",
            "| embedded model | red | ANOTHER | FAULT | UNDECIDED | nats (median, largest) |",
            line,
            *list_embedded(),
        ]
    )


def main():
    print(tables())


if __name__ == "__main__":
    main()
