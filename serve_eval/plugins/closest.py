"""Find the known names that are closest to a misspelt one."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable

MOST_COMPARED, LONGEST_COMPARED = 2000, 200
"""Maximum number of known names, and characters of a name, for which the closest one is sought: the
comparison takes time and memory that grow with their product."""

MISSPELT = 0.85
"""Least similarity of a misspelt name with the name that it means."""


def find_closest(name: str, known: Iterable[str], *, most: int = 1) -> list[str]:
    """Return the known names that are closest to a name, at most `most`; none for a huge name.

    If none is close, a known name counts that this one goes on after an underscore, as names of
    other tools do: gpqa_diamond means gpqa.
    """
    if len(name) > LONGEST_COMPARED:
        return []
    short = (one for one in known if len(one) <= LONGEST_COMPARED)
    found = list(itertools.islice(short, MOST_COMPARED))
    close = difflib.get_close_matches(name, found, n=most, cutoff=0.55)
    begun = (one for one in found if one and name.startswith(f"{one}_"))
    return close or sorted(begun, key=len, reverse=True)[:most]


def find_misspelt(name: str, known: Iterable[str]) -> str:
    """Return the known name that `name` misspells by a letter or two, or ""."""
    return next((one for one in find_closest(name, known) if _is_misspelt(name, one)), "")


def _is_misspelt(name: str, known: str) -> bool:
    return difflib.SequenceMatcher(None, name, known).ratio() >= MISSPELT


def nearest(name: str, known: Iterable[str], *, shown: int = 8) -> str:
    """Return " Did you mean X?" for the known name closest to `name`.

    If none is close, return the first `shown` known names, or "" if there are none.
    """
    known, name = list(dict.fromkeys(known)), str(name)
    folded = {k.lower(): k for k in known}
    if close := find_closest(name.lower(), folded):
        return f" Did you mean {folded[close[0]]!r}?"
    more = f" and {len(known) - shown} more" if len(known) > shown else ""
    first = [one if len(one) <= LONGEST_COMPARED else f"{one[:40]}..." for one in known[:shown]]
    return f" Known: {', '.join(first)}{more}." if known else ""
