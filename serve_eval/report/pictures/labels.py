"""Make texts from other sources short and safe for a picture."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.report.text import clean

LONGEST = 32
"""Characters of a label. Longer texts are cut."""


def shorten(text: str, longest: int = LONGEST) -> str:
    """Return a text on one line, without control characters and halves of surrogate pairs."""
    whole = text.encode(errors="replace").decode()
    flat = " ".join(clean(whole).split())
    return flat if len(flat) <= longest else f"{flat[: longest - 3]}..."


def shorten_all(texts: Sequence[str], longest: int = LONGEST) -> list[str]:
    """Return short texts that stay different: those that became equal are numbered."""
    found: list[str] = []
    taken: set[str] = set()
    for text in texts:
        short, number = shorten(text, longest) or "(no name)", 1
        free = short
        while free in taken:
            number += 1
            free = f"{short} ({number})"
        taken.add(free)
        found.append(free)
    return found


def count(n: int, one: str) -> str:
    """Return a count with its noun: "1 run", "1,319 runs"."""
    return f"{n:,} {one}{'' if n == 1 else 's'}"


def list_some(parts: Sequence[str], most: int = 60) -> str:
    """Return the parts as one text; of many, the first ones and the number of the others."""
    more = len(parts) - most
    return "; ".join(parts[:most]) + (f"; and {more:,} more" if more > 0 else "")
