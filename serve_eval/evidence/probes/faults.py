"""Find faults of single requests: few answers, far away, that no numerics explain. Pure.

Too few of them to call the server another model can still be a fault, since sound servers have
none: a KV block of another request, a broken kernel for one shape, one bad replica of many. More
probes do not decide about a small share; asking the same probes again does. An answer that is far
away each time comes from the prompt and not from chance.

Healthy numerics of a mixture of experts move some probes by a nat, and again each time. So hits
count only where healthy servers have none. That is known from the siblings' answers to enough
probes, from the floor that the user gave, or, where no floor is known, from the other probes, if
they are bit for bit alike. If these are not alike either, only a distance counts that no expert's
flip explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from serve_eval.schema import ProbeDistance
from serve_eval.stats.tail import count_unlikely, share_beyond

VERY_FAR = 2.0
"""Distance, in nats, of which one probe is enough, if it is so again."""
NO_FLIP = 5.0
"""Distance, in nats, that no flip of an expert explains, where nothing else is known."""
HITS = 2
"""Number of probes, far away, that are a fault together."""
FLIPS, ALPHA = 0.0155, 0.01
"""Share of probes that healthy experts move by a quarter of a nat at least, if they move 2 % by a
nat on average, and the chance to see none of them."""
CLEAN = math.ceil(math.log(ALPHA) / math.log1p(-FLIPS))
"""Siblings' answers, none of them half as far away as a fault, that exclude such flips."""
ALIKE = 0.05
"""Largest share of other probes that differ where a server is bit for bit alike elsewhere."""


def keep_returned(distances: Sequence[ProbeDistance], least: float) -> list[float]:
    """Return the distances of probes that were beyond `least` each time they were repeated."""
    return [
        one.nats
        for one in distances
        if one.nats > least and one.repeats and min(one.repeats) > least
    ]


def is_fault(nats: Sequence[float]) -> bool:
    """Return True if answers that healthy servers do not have are enough for a fault."""
    return len(nats) >= HITS or any(one > VERY_FAR for one in nats)


def exceeds_tail(far: int, asked: int, siblings: Sequence[float], limit: float) -> bool:
    """Return True if more answers are far away than the tail of the siblings' explains.

    `far` of `asked` are. `siblings` are the distances of all answers of siblings, none of them
    beyond `limit`. If they fall steeply, a single answer is too many.
    """
    return far >= count_unlikely(asked * share_beyond(siblings, limit), ALPHA)


def keep_unexplained(distances: Sequence[ProbeDistance], far: float, *, alike: bool) -> list[float]:
    """Return the distances, in nats, that are a fault where no floor is known, if there are enough.

    `alike`: the other probes are bit for bit alike. Each was so again each time.
    """
    return keep_returned(distances, far if alike else max(far, NO_FLIP))


def is_no_flip(nats: Sequence[float]) -> bool:
    """Return True for answers of which no flip of an expert explains enough."""
    return sum(one > NO_FLIP for one in nats) >= HITS
