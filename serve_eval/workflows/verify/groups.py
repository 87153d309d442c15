"""Sort the servers of a fleet into groups that answer alike, as those of one GPU type. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serve_eval.evidence.probes.floor import limits_of, measure_distance
from serve_eval.evidence.probes.judging import ALIKE
from serve_eval.schema import Probe, ProbeReading, VerificationReference

Readings = Sequence[ProbeReading | None]
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
