"""Say what decides an undecided verification. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serve_eval.evidence.probes.floor import limits_of
from serve_eval.evidence.probes.sentences import DECIDES
from serve_eval.schema import Verification, VerificationOutcome, VerifiedSide
from serve_eval.shell_words import quote_word

NAME_A_FLOOR = "name a sibling or a floor"


def lacks_floor(found: Verification) -> bool:
    """Return True if a server is undecided because no floor is known."""
    undecided = any(one.outcome is VerificationOutcome.UNDECIDED for one in found.sides)
    return undecided and found.floor is None and not found.rehearsal


def advise(
    found: Verification, undecided: Sequence[VerifiedSide], addresses: Mapping[str, str]
) -> str:
    """Return what decides about servers that are undecided.

    `addresses` are those with which a further command reaches the servers, by name. More probes
    are no help where the share beyond the floor is near the one that healthy servers may have, nor
    where the floor is unknown.
    """
    if found.floor is None:
        asked = quote_word(addresses.get(found.reference, "REFERENCE"))
        how = f"serve-eval verify {asked} --sibling HEALTHY --register floor.json"
        return f"a healthy sibling of another setting measures the floor: {how}"
    if not limits_of(found).known:
        return f"undecided, since the floor is unknown: {DECIDES}"
    if needed := max((one.needed or 0 for one in undecided), default=0):
        return f"undecided: about {needed:,} probes decide: --probes {needed}"
    if any(one.beyond_floor for one in undecided):
        return (
            "undecided: some answers lie beyond the floor, about as many as healthy servers may"
            " have, so more probes hardly decide: name a further --sibling, or measure the answers"
            " with serve-eval compare"
        )
    return (
        "undecided: more probes may decide: raise --probes, and register a reference in a file"
        " again with it"
    )
