"""Judge the servers of a fleet by each other: find those that differ from the majority.

All servers are asked the same probes. The one with the smallest distances from the others stands
for the majority, and the nearer half of the others shows what healthy servers differ by. So fewer
than half of them may be broken in the same way, or more in different ways.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec

from serve_eval.errors import EndpointError
from serve_eval.evaluation.probes.asking import AskedServer
from serve_eval.evaluation.probes.distance import measure_distance
from serve_eval.evaluation.probes.evidence import FAR_NATS
from serve_eval.evaluation.probes.floor import check_floor, find_floor, keep_measured
from serve_eval.schema import Probe, ProbeReading, VerificationReference, VerifiedSide
from serve_eval.workflows.verify.judged import judge_together
from serve_eval.workflows.verify.reference import ReferenceMaker
from serve_eval.workflows.verify.servers import NamedPlan, VerifySession, open_servers

FIRST, ROUND = 60, 20
"""Probes that all servers are asked, and those of each further round."""
LEAST_SERVERS = 3
CANDIDATES = 16
"""Servers, drawn from the fleet, that may stand for the majority: fewer comparisons of pairs."""
MAJORITY = "the majority, as "
Readings = Sequence[ProbeReading | None]


async def judge_fleet(
    made: ReferenceMaker,
    servers: Sequence[NamedPlan],
    known: VerificationReference,
    session: VerifySession,
    stack: AsyncExitStack,
) -> tuple[AskedServer, VerificationReference, list[VerifiedSide]]:
    """Return the server that stands for the majority, the reference, and the sides.

    `made` asks the first server, and `known` is its reference.
    """
    await made.extend(min(FIRST, session.rules.probes))
    opened = await open_servers(servers, session, stack, route=known.route)
    asked = [made.server, *opened]
    prompts = [probe.prompt for probe in made.probes]
    found = await asyncio.gather(*(one.read_all(prompts) for one in opened))
    readings: list[Readings] = [[probe.reading for probe in made.probes], *found]
    middle, spread = find_middle(made.probes, readings, session.rules.seed)
    floor = session.rules.floor or max(spread, known.noise)
    known = msgspec.structs.replace(known, floor=floor)
    check_floor(known, MAJORITY + asked[middle].name)
    others = [place for place in range(len(asked)) if place != middle]
    family = judge_together([asked[place] for place in others], known)
    judged = dict(zip(others, family, strict=True))
    kept = {place: readings[place] for place in judged}
    begin = 0
    while pending := {
        place: one
        for place, one in judged.items()
        if not one.is_decided(session.rules.probes, session.rules.tokens)
    }:
        if begin >= len(made.probes):
            if begin >= session.rules.probes:
                break
            await made.extend(min(session.rules.probes, begin + ROUND))
            more = made.probes[begin:]
            kept = await _read_more(more, asked, sorted({middle, *pending}), readings)
            for place, found_more in kept.items():
                readings[place] = found_more
        probes = rebase(made.probes[begin:], readings[middle][begin:])
        for place, one in pending.items():
            answers = [
                reading
                for reading, answer in zip(
                    kept[place][begin:], readings[middle][begin:], strict=True
                )
                if answer is not None
            ]
            if await session.keep(one.server.name, one.judge(probes, answers)) is None:
                one.lost = True
        begin = len(made.probes)
    known = msgspec.structs.replace(known, probes=tuple(rebase(made.probes, readings[middle])))
    return (
        asked[middle],
        known,
        [judged[place].result() for place in sorted(judged) if not judged[place].lost],
    )


async def _read_more(
    more: Sequence[Probe],
    asked: Sequence[AskedServer],
    places: Sequence[int],
    readings: Sequence[Readings],
) -> dict[int, Readings]:
    """Return the answers of some servers, with those to further probes."""
    prompts = [probe.prompt for probe in more]

    async def read(place: int) -> Readings:
        own = [probe.reading for probe in more] if place == 0 else None
        return [*readings[place], *(own or await asked[place].read_all(prompts))]

    return dict(zip(places, await asyncio.gather(*map(read, places)), strict=True))


def rebase(probes: Sequence[Probe], readings: Readings) -> list[Probe]:
    """Return the probes with another server's answers as the reference, without missing ones."""
    return [
        msgspec.structs.replace(probe, reading=reading, again=(), sibling=None)
        for probe, reading in zip(probes, readings, strict=True)
        if reading is not None
    ]


def find_middle(
    probes: Sequence[Probe], readings: Sequence[Readings], seed: int = 0
) -> tuple[int, float]:
    """Return the server in the middle of all, and the largest floor of the nearer half from it.

    Pure. The middle is the server whose mean distance from its nearer half is the smallest. It
    takes a majority to be near each other, so a broken minority is not in the middle. The mean
    shows faults of few requests too; no probe counts for more than FAR_NATS. Raises EndpointError
    if too few servers answer.
    """
    able = [place for place, one in enumerate(readings) if any(one)]
    if len(able) < LEAST_SERVERS:
        raise EndpointError(f"only {len(able)} servers answered; a majority takes {LEAST_SERVERS}")
    best: tuple[float, int, float] | None = None
    for place in random.Random(seed).sample(able, min(CANDIDATES, len(able))):
        rows = sorted(
            _measure_pair(probes, readings[place], readings[other])
            for other in able
            if other != place
        )
        near = rows[: len(able) // 2]
        score = sum(mean for mean, _ in near), place, max(largest for _, largest in near)
        best = score if best is None or score < best else best
    assert best is not None
    return best[1], best[2]


def _measure_pair(probes: Sequence[Probe], a: Readings, b: Readings) -> tuple[float, float]:
    """Return the mean distance of two servers, by which they are ranked, and the floor it shows.

    An answer that measures nothing counts in the mean only.
    """
    found = [
        measure_distance(probe.id, x, y)
        for probe, x, y in zip(probes, a, b, strict=True)
        if x is not None and y is not None
    ]
    nats = [FAR_NATS if one is None else min(one.nats, FAR_NATS) for one in found]
    return statistics.fmean(nats or [FAR_NATS]), find_floor(keep_measured(found))
