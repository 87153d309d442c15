"""Judge the servers of a fleet by each other: find those that differ from the majority.

All servers are asked the same probes. The one with the smallest distances from the others stands
for the majority, and the nearer half of the others are its siblings: they show what healthy servers
differ by. So fewer than half of them may be broken in the same way, or more in different ways. If
that half answers bit for bit alike, it says nothing about another GPU type: servers that differ are
named as a group, and not accused.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import msgspec

from serve_eval.errors import EndpointError
from serve_eval.evaluation.probe_server import AskedServer
from serve_eval.evidence.probe_floor import (
    FAR_NATS,
    check_floor,
    find_floor,
    keep_measured,
    limits_of,
    measure_distance,
)
from serve_eval.evidence.probe_judging import ALIKE
from serve_eval.frozen import freeze
from serve_eval.schema import (
    Probe,
    ProbeDistance,
    ProbeReading,
    VerificationReference,
    VerifiedSide,
)
from serve_eval.workflows.verify.judged import judge_together
from serve_eval.workflows.verify.reference import ReferenceMaker
from serve_eval.workflows.verify.servers import NamedPlan, VerifySession, open_servers

FIRST, ROUND = 60, 20
"""Probes that all servers are asked, and those of each further round."""
LEAST_SERVERS = 3
CANDIDATES = 16
"""Servers, drawn from the fleet, that may stand for the majority: fewer comparisons of pairs."""
SIBLINGS = 3
"""Servers of the nearer half, its farthest ones, with which each probe is compared."""
MAJORITY = "the majority, as "
Readings = Sequence[ProbeReading | None]


@freeze
class JudgedFleet:
    """A fleet: the server that stands for its majority, the reference, sides and groups."""

    middle: AskedServer
    known: VerificationReference
    sides: list[VerifiedSide]
    groups: list[tuple[str, ...]]


async def judge_fleet(
    made: ReferenceMaker,
    servers: Sequence[NamedPlan],
    known: VerificationReference,
    session: VerifySession,
    stack: AsyncExitStack,
) -> JudgedFleet:
    """Judge the servers of a fleet. `made` asks the first one, and `known` is its reference."""
    await made.extend(min(FIRST, session.rules.probes))
    opened = await open_servers(servers, session, stack, route=known.route)
    asked = [made.server, *opened]
    prompts = [probe.prompt for probe in made.probes]
    found = await asyncio.gather(*(one.read_all(prompts) for one in opened))
    readings: list[Readings] = [[probe.reading for probe in made.probes], *found]
    middle, near = find_middle(made.probes, readings, session.rules.seed)
    spread = max(_measure_pair(made.probes, readings[middle], readings[one])[1] for one in near)
    known = msgspec.structs.replace(
        known,
        floor=session.rules.floor or spread,
        floor_given=session.rules.floor is not None,
        median=_find_typical(made.probes, readings, middle, near),
        probes=tuple(rebase(made.probes, readings, middle, near[-SIBLINGS:])),
    )
    check_floor(known, MAJORITY + asked[middle].name)
    groups = list_groups(
        made.probes, {one.name: found for one, found in zip(asked, readings, strict=True)}, known
    )
    others = [place for place in range(len(asked)) if place != middle]
    family = judge_together([asked[place] for place in others], known)
    judged = dict(zip(others, family, strict=True))
    healthy = {
        place: [other for other in near if other != place][-SIBLINGS:] or near for place in judged
    }
    for place, one in judged.items():
        one.evidence.paired.siblings = len(healthy[place])
        one.thorough = False  # A fleet is large, and its servers are asked together.
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
            compared = {other for place in pending for other in healthy[place]}
            kept = await _read_more(more, asked, sorted({middle, *pending, *compared}), readings)
            for place, found_more in kept.items():
                readings[place] = found_more
        for place, one in pending.items():
            probes = rebase(made.probes, readings, middle, healthy[place], begin)
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
    for place, one in judged.items():
        one.end(rebase(made.probes, readings, middle, healthy[place]))
    probes = rebase(made.probes, readings, middle, near[-SIBLINGS:])
    return JudgedFleet(
        middle=asked[middle],
        known=msgspec.structs.replace(known, probes=tuple(probes)),
        sides=[judged[place].result() for place in sorted(judged) if not judged[place].lost],
        groups=groups,
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


def rebase(
    probes: Sequence[Probe],
    readings: Sequence[Readings],
    middle: int,
    siblings: Sequence[int],
    begin: int = 0,
) -> list[Probe]:
    """Return the probes from `begin` on with a server's answers as the reference.

    Probes that it did not answer are left out. `siblings` are the places of those whose answers are
    kept too; they may have answered fewer probes.
    """
    found = []
    for number, reading in enumerate(readings[middle][begin:], start=begin):
        if reading is None:
            continue
        answers = [readings[one][number] for one in siblings if number < len(readings[one])]
        found.append(
            msgspec.structs.replace(
                probes[number],
                reading=reading,
                again=(),
                sibling=answers[0] if answers else None,
                siblings=tuple(answers[1:]),
            )
        )
    return found


def _find_typical(
    probes: Sequence[Probe], readings: Sequence[Readings], middle: int, near: Sequence[int]
) -> float:
    """Return the median distance of the nearer half, in nats."""
    found = [
        nats
        for one in near
        for nats in keep_measured(_list_distances(probes, readings[middle], readings[one]))
    ]
    return statistics.median(found or [0.0])


def find_middle(
    probes: Sequence[Probe], readings: Sequence[Readings], seed: int = 0
) -> tuple[int, list[int]]:
    """Return the server in the middle of all, and its nearer half, the nearest first.

    Pure. The middle is the server whose mean distance from its nearer half is the smallest. It
    takes a majority to be near each other, so a broken minority is not in the middle. The mean
    shows faults of few requests too; no probe counts for more than FAR_NATS. Raises EndpointError
    if too few servers answer.
    """
    able = [place for place, one in enumerate(readings) if any(one)]
    if len(able) < LEAST_SERVERS:
        raise EndpointError(f"only {len(able)} servers answered; a majority takes {LEAST_SERVERS}")
    best: tuple[float, int, list[int]] | None = None
    for place in random.Random(seed).sample(able, min(CANDIDATES, len(able))):
        rows = sorted(
            (_measure_pair(probes, readings[place], readings[other])[0], other)
            for other in able
            if other != place
        )
        near = rows[: len(able) // 2]
        score = sum(mean for mean, _ in near), place, [other for _, other in near]
        best = score if best is None or score < best else best
    assert best is not None
    return best[1], best[2]


def _measure_pair(probes: Sequence[Probe], a: Readings, b: Readings) -> tuple[float, float]:
    """Return the mean distance of two servers, by which they are ranked, and the floor it shows.

    An answer that measures nothing counts in the mean only.
    """
    found = _list_distances(probes, a, b)
    nats = [FAR_NATS if one is None else min(one.nats, FAR_NATS) for one in found]
    return statistics.fmean(nats or [FAR_NATS]), find_floor(keep_measured(found))


def _list_distances(
    probes: Sequence[Probe], a: Readings, b: Readings
) -> list[ProbeDistance | None]:
    return [
        measure_distance(probe.id, x, y)
        for probe, x, y in zip(probes, a, b, strict=True)
        if x is not None and y is not None
    ]


MOST_NAMES = 8
"""Names of a list that are shown at most."""


def list_groups(
    probes: Sequence[Probe], readings: Mapping[str, Readings], known: VerificationReference
) -> list[tuple[str, ...]]:
    """Return the names of servers that answer alike, the largest group first.

    Alike are servers of whose answers at most ALIKE differ by more than the noise. Without any two
    that are alike, or with all of them alike, there is nothing to name: the list is empty.
    """
    limit = limits_of(known).beyond_noise
    groups: list[tuple[Readings, list[str]]] = []
    for name, found in readings.items():
        if not any(found):
            continue
        for first, names in groups:
            if _answer_alike(probes, first, found, limit):
                names.append(name)
                break
        else:
            groups.append((found, [name]))
    if len(groups) < 2 or all(len(names) == 1 for _, names in groups):
        return []
    return sorted((tuple(names) for _, names in groups), key=len, reverse=True)


def _answer_alike(probes: Sequence[Probe], a: Readings, b: Readings, limit: float) -> bool:
    pairs = [
        measure_distance(probe.id, x, y)
        for probe, x, y in zip(probes, a, b, strict=False)
        if x is not None and y is not None
    ]
    other = sum(one is None or one.nats > limit for one in pairs)
    return bool(pairs) and other <= ALIKE * len(pairs)


def list_names(names: Sequence[str]) -> str:
    """Return names with commas; of many, the first ones and the number of the others."""
    shown, more = names[:MOST_NAMES], len(names) - MOST_NAMES
    return ", ".join(shown) + (f" and {more} others" if more > 0 else "")
