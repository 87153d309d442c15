"""Find the floor: what healthy servers differ by, from the distances of one of them. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from serve_eval.errors import NotComparableError
from serve_eval.evidence.probes.distance import CLEAR_GAP, GONE, measure_distance
from serve_eval.evidence.probes.given_floor import ALLOWED
from serve_eval.evidence.probes.limits import FLOORS, DistanceLimits
from serve_eval.schema import Probe, ProbeDistance, Verification, VerificationReference

COVERED_ALPHA = 0.05
"""Probability with which more than ALLOWED of a sibling's probes lie beyond its floor."""
LARGEST_FLOOR = GONE / FLOORS
"""Nats that a floor must stay below, since no distance exceeds three such floors."""


def is_measured(distance: ProbeDistance) -> bool:
    """Return True for a difference of two listed log-probabilities.

    An answer without tokens, without log-probabilities, or without the token in its list has a
    distance that only stands for one. It counts against a server, and says nothing of numerics.
    """
    return not (distance.at_least or distance.texts_only) and distance.nats < GONE


def keep_measured(found: Iterable[ProbeDistance | None]) -> list[float]:
    """Return the distances that were measured, in nats."""
    return [one.nats for one in found if one is not None and is_measured(one)]


def count_unmeasured(found: Iterable[ProbeDistance | None]) -> int:
    """Return the number of answers whose distance was not measured."""
    return sum(one is None or not is_measured(one) for one in found)


def find_floor(nats: Sequence[float]) -> float:
    """Return the floor that measured distances show, in nats; 0 without any.

    It is the upper tolerance limit of a share of 1 - ALLOWED, with confidence 1 - COVERED_ALPHA:
    the largest distance of up to 92 probes, the second largest of up to 123, and so on. No probe
    sets it alone: it is at most three times the next smaller distance.
    Source: Wilks, "Determination of sample sizes for setting tolerance limits", 1941.
    """
    if not nats:
        return 0.0
    ordered = sorted(nats, reverse=True)
    return _bound_by_next(ordered[_count_beyond(len(nats)) :])


def _bound_by_next(ordered: Sequence[float], least: float = 0.0) -> float:
    """Return the first of falling distances, or three times the second or `least` if smaller.

    0 without any. A single distance is returned as it is.
    """
    if len(ordered) < 2:
        return ordered[0] if ordered else 0.0
    return min(ordered[0], max(least, FLOORS * ordered[1]))


def _count_beyond(probes: int) -> int:
    """Return how many of the largest distances lie beyond the floor."""
    below, beyond = 0.0, 0
    while beyond < probes:
        below += math.comb(probes, beyond) * ALLOWED**beyond * (1 - ALLOWED) ** (probes - beyond)
        if below > COVERED_ALPHA:
            break
        beyond += 1
    return max(0, beyond - 1)


def measure_noise(probes: Sequence[Probe]) -> float:
    """Return what the reference's server differs by from itself, in nats.

    That is the largest measured distance of its probes. Beyond CLEAR_GAP it is at most three times
    that of the next probe.
    """
    found = []
    for probe in probes:
        again = (measure_distance(probe.id, probe.reading, one.reading) for one in probe.again)
        if measured := keep_measured(again):
            found.append(max(measured))
    return _bound_by_next(sorted(found, reverse=True), CLEAR_GAP)


def measure_siblings(probes: Sequence[Probe]) -> tuple[float, float] | None:
    """Return the floor and the median distance of all siblings, in nats; None without one.

    The floor is that of the furthest sibling.
    """
    places = max((1 + len(probe.siblings) for probe in probes), default=1)
    each = [keep_measured(_distances_of(probes, place)) for place in range(places)]
    if not any(each):
        return None
    return max(map(find_floor, each)), statistics.median([one for found in each for one in found])


def _distances_of(probes: Sequence[Probe], place: int) -> Iterator[ProbeDistance | None]:
    for probe in probes:
        readings = (probe.sibling, *probe.siblings)
        if place < len(readings) and (reading := readings[place]) is not None:
            yield measure_distance(probe.id, probe.reading, reading)


def sibling_distances(probes: Sequence[Probe]) -> Iterator[ProbeDistance | None]:
    """Yield the distance of each answer of a sibling; None if nothing was comparable."""
    for probe in probes:
        for reading in probe.healthy:
            yield measure_distance(probe.id, probe.reading, reading)


def limits_of(known: VerificationReference | Verification) -> DistanceLimits:
    """Return the limits of a reference, or those by which a result was judged."""
    if isinstance(known, Verification):
        measured, typical = known.floor_measured, known.sibling_median
    else:
        measured, typical = known.measured, known.median
    return DistanceLimits(
        noise=known.noise,
        step=known.step,
        floor=known.floor,
        measured=measured,
        typical=typical or 0.0,
    )


def compare_siblings(probe: Probe, distance: ProbeDistance) -> tuple[float, ...]:
    """Return how far the siblings are away at a probe, as `distance` measures it, in nats.

    A distance of texts alone is compared with that of the siblings' texts.
    """
    found = (
        measure_distance(
            probe.id,
            probe.reading,
            msgspec.structs.replace(one, tokens=()) if distance.texts_only else one,
        )
        for one in probe.healthy
    )
    if distance.texts_only:
        return tuple(one.nats for one in found if one is not None and one.texts_only)
    return tuple(keep_measured(found))


def check_floor(known: VerificationReference, about: str) -> None:
    """Raise NotComparableError if no distance can exceed the limits. `about` begins the message."""
    limits = limits_of(known)
    if max(limits.beyond_noise, known.floor or 0.0) < LARGEST_FLOOR:
        return
    measured = measure_siblings(known.probes)
    usable = measured is not None and measured[0] < LARGEST_FLOOR
    told = f" Its sibling's answers measure {measured[0]:.3g} nat." if measured and usable else ""
    what = "floor" if limits.beyond_noise < LARGEST_FLOOR else "noise"
    size = known.floor if what == "floor" else known.noise
    raise NotComparableError(
        f"{about}: a {what} of {size:.3g} nat: no answer can be so far away that it counts as"
        f" another model's (a floor must be below {LARGEST_FLOOR:.3g})",
        hint=f"Register the reference again, with a healthy sibling, or give --floor NATS.{told}"
        if what == "floor"
        else "Register the reference again, with a server that repeats its answers.",
    )
