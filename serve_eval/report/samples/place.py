"""Find where an extracted answer stands in the text that it was extracted from. Pure.

Scorers return what they extracted without its place, and in another form: without the commas of a
number, or in capitals. The last place that fits is shown, as most scorers read the end of an
answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 80
"""Characters of an extracted answer that is searched for in other forms."""
_BETWEEN_DIGITS = r"[,_' ]?"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPlace:
    """The last place of an extracted answer in a text: characters `start` to `end`, from 0.

    It is on line `line` of `lines`, counted from 1. The answer stands at `times` places.
    """

    start: int
    end: int
    line: int
    lines: int
    times: int


def find_place(text: str, extracted: str | None) -> AnswerPlace | None:
    """Return where an extracted answer stands, or None if it does not stand there."""
    extracted = (extracted or "").strip()
    if not extracted:
        return None
    found = list(re.finditer(_pattern(extracted), text, re.IGNORECASE))
    if not found:
        return None
    start, end = found[-1].span()
    return AnswerPlace(
        start=start,
        end=end,
        line=text.count("\n", 0, start) + 1,
        lines=text.rstrip("\n").count("\n") + 1,
        times=len(found),
    )


def _pattern(extracted: str) -> str:
    """Return a pattern of an extracted answer as a separate word."""
    before = r"(?<!\w)" if extracted[0].isalnum() else ""
    after = r"(?!\w)" if extracted[-1].isalnum() else ""
    if len(extracted) > LONGEST:
        return f"{before}{re.escape(extracted)}{after}"
    inner = re.sub(
        r"(?<=[0-9])(?=[0-9])",
        lambda _: _BETWEEN_DIGITS,
        re.escape(extracted).replace(r"\ ", r"\s+"),
    )
    return f"{before}{inner}{after}"
