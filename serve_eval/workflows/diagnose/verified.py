"""Say what a finished verification found, and what measures it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from serve_eval.evaluation.storage.story_files import VERIFY
from serve_eval.schema import Verification, VerificationOutcome

_RED = (VerificationOutcome.ANOTHER, VerificationOutcome.FAULT)


def describe_verified(folder: Path) -> Iterator[str]:
    """Yield the outcome of each server with its reason, the named part, and what comes next."""
    found = VERIFY.find(folder, Verification)
    if found is None:
        return
    order = list(VerificationOutcome)[::-1]
    for side in sorted(found.sides, key=lambda one: order.index(one.outcome)):
        yield f"{side.name}: {side.outcome.value}: {side.why}"
    yield from found.named
    yield from (f"{one.name}: not verified: {one.why}" for one in found.lost)
    red = [one for one in found.sides if one.outcome in _RED and one.part_of is None]
    if red:
        yield f"next: serve-eval compare GOOD {red[0].name}: it measures whether answers are worse"
    elif any(one.outcome is VerificationOutcome.UNDECIDED for one in found.sides):
        yield "next: serve-eval verify with a --sibling in another healthy setting"
