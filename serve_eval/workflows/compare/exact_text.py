"""Put into words how many answers differ in their tokens, where they part, and how."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.evidence.agreement.answer_texts import (
    describe_first_divergences,
    draw_first_divergences,
    read_first_divergences,
)
from serve_eval.schema import Parting, TokenEquality

SHOWN = 3
"""Different answers that are printed; comparison.json has more."""
LEAST_DRAWN = 4
"""Places that a histogram needs."""
ALPHA = 0.05
"""Chance that a share of different answers above the printed one shows no difference."""
_COUNTS = {
    "compared": "texts, and the numbers of generated tokens",
    "none": "texts, since no numbers of generated tokens are reported",
    "otherwise": "texts, since A and B count the generated tokens of equal texts otherwise",
}


def describe_equality(found: TokenEquality) -> Iterator[str]:
    """Yield the lines about the equality of a task; those that begin with a space belong together.

    Without differences, the first line has the share of different answers that is excluded.
    """
    same = found.answers - found.different - found.other_counts
    line = f"equal tokens: {same} of {found.answers} answers ({_COUNTS[found.counts]})"
    if found.missing:
        line += f"; {found.missing} are missing on a side"
    if found.answers and same == found.answers:
        share = 1.0 - ALPHA ** (1.0 / found.answers)
        line += f"; that excludes a share of {share:.1%} or more that differ (95 %)"
    yield line
    if found.other_counts:
        yield f"{found.other_counts} equal texts have another number of tokens"
    if (places := found.places) is not None:
        more = f"; {found.different - places.parted} more: not asked again for their tokens"
        unknown = more if places.unit == "token" and places.parted < found.different else ""
        yield f"different texts part at {describe_first_divergences(places)}{unknown}"
        if places.parted >= LEAST_DRAWN and places.at_usual < places.parted:
            yield from draw_first_divergences(places)
        if reading := read_first_divergences(places):
            yield f"{describe_first_divergences(places)}: {reading}"
    for prompt, parting in [*found.partings.items()][:SHOWN]:
        yield from _show(prompt, parting)


def _show(prompt: str, parting: Parting) -> Iterator[str]:
    place = f"word {parting.word}" if parting.token is None else f"token {parting.token}"
    yield f"{prompt}: parts at {place}, after {parting.before!r}"
    yield f"  A: {parting.a!r}"
    yield f"  B: {parting.b!r}"
