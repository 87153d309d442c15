"""Warn of doubtful floors, and of servers that a floor alone makes sound. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.evidence.probes.floor import (
    FAR_NATS,
    FLOORS,
    LEAST_FLOOR,
    TIMES,
    count_unmeasured,
    limits_of,
    sibling_distances,
)
from serve_eval.evidence.probes.sentences import DECIDES
from serve_eval.report.nats import write_nats
from serve_eval.schema import VerificationOutcome, VerificationReference, VerifiedSide

MOST_MEDIANS = 30
"""Medians of a sibling that its floor may have without a warning. 13 were measured."""
_SOUND = (VerificationOutcome.IDENTICAL, VerificationOutcome.OTHER_NUMERICS)


def warn_of_floor(known: VerificationReference) -> list[str]:
    """Return a line for whatever makes a floor doubtful."""
    found = []
    distances = list(sibling_distances(known.probes))
    if left := count_unmeasured(distances):
        found.append(
            f"{left} of the sibling's {len(distances)} answers are left out of the floor: without"
            " tokens, log-probabilities or the reference's token, they measure nothing"
        )
    if distances and known.floor is None:
        found.append("no answer of the sibling could be measured: name another one")
    if known.floor is not None and not limits_of(known).known:
        found.append(
            f"the floor is {_describe_floor(known.floor)}, so it is unknown, and no server can be"
            f" called another model: {DECIDES}"
        )
    if known.floor_given and known.floor is not None and known.floor < LEAST_FLOOR:
        found.append(
            f"the given floor of {write_nats(known.floor)} nat is small: with other kernels, sound"
            f" servers were measured beyond {LEAST_FLOOR} nat"
        )
    if known.floor is not None and _is_high(known.floor, known.median or 0.0):
        times = f", {known.floor / known.median:.0f} times the median" if known.median else ""
        found.append(
            f"the floor of {known.floor:.3g} nat is high{times}: smaller faults are not seen. Name"
            " a healthy sibling, or a smaller --floor"
        )
    return found


def _describe_floor(floor: float) -> str:
    if floor == 0.0:
        return "0: the sibling answered bit for bit alike, which measures no floor"
    if floor < LEAST_FLOOR:
        return f"{write_nats(floor)} nat, as that of replicas"
    return f"{write_nats(floor)} nat by single probes, with the others bit for bit alike"


def _is_high(floor: float, median: float) -> bool:
    """Return True for a floor that no numerics explain, or that few of a sibling's probes make."""
    return floor > FAR_NATS or floor > MOST_MEDIANS * median > 0


def warn_of_effects(known: VerificationReference, sides: Sequence[VerifiedSide]) -> list[str]:
    """Return a line for each server that is called sound, far beyond the sibling's typical."""
    limits = limits_of(known)
    return [
        f"{one.name}: its typical distance is {one.effect:.1f} times the sibling's, though the"
        " floor allows it: measure it with serve-eval compare, or give a smaller --floor"
        for one in sides
        if one.outcome in _SOUND
        and one.effect is not None
        and one.effect > TIMES
        and one.median > FLOORS * limits.beyond_noise
    ]
