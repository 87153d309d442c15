"""Name the loads at which an endpoint is broken, in a few words. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

NOTHING = "nothing found"


def name_loads(
    loads: Sequence[int],
    bad: Collection[int],
    *,
    what: str = "broken",
    likely: Collection[int] = (),
    unclear: Collection[int] = (),
) -> str:
    """Return where a fault is: from a load on, only at one, up to one, or at several.

    `loads` ascend. Those in `likely` are among the bad ones without a proof of their own. Those in
    `unclear` are neither known to be bad nor known to be good, and do not count.
    """
    if not bad:
        return NOTHING
    decided = [load for load in loads if load not in unclear]
    named = [load for load in decided if load in bad]
    words = f"{what} {_phrase(decided, named)}"
    if likely:
        words += f"; likely at {_join(likely)}, not proved alone"
    if unclear:
        words += f"; not decided at {_join(unclear)}"
    return words


def _phrase(decided: Sequence[int], named: Sequence[int]) -> str:
    count = len(named)
    if count == len(decided) > 1:
        return "at all loads"
    if decided[-count:] == named:
        return f"from {named[0]} on"
    if count == 1:
        return f"only at {named[0]}"
    if decided[:count] == named:
        return f"up to {named[-1]}"
    return f"at {_join(named)}"


def _join(loads: Collection[int]) -> str:
    *first, last = map(str, sorted(loads))
    return f"{', '.join(first)} and {last}" if first else last
