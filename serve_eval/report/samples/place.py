"""Find where an extracted answer stands in the text that it was extracted from. Pure.

Scorers return what they extracted without its place, and in another form: a number without commas
or with more decimals, or a text in capitals. The last place that fits is shown, as most scorers
read the end of an answer.
"""

from __future__ import annotations

import math
import re

from serve_eval.frozen import freeze

LONGEST = 80
"""Characters of an extracted answer that is searched for in other forms."""
_BETWEEN_DIGITS = r"[,_' ]?"
_SEPARATOR = re.compile(r"(?<=\d)[,_' \u00a0\u2009\u202f](?=\d{3})")
_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:\d{1,3}(?:[,_' \u00a0\u2009\u202f]\d{3})+(?!\d)|\d+)?(?:\.\d+)?"
    r"(?<=\d)(?:[eE][-+]?\d{1,3})?(?!\w)"
)


@freeze
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
    found = found or _find_number(text, extracted)
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


def _find_number(text: str, extracted: str) -> list[re.Match[str]]:
    """Return the places of the numbers with the value of an extracted one: 80.0 of "#### 80"."""
    value = _read_number(extracted)
    if value is None:
        return []
    return [one for one in _NUMBER.finditer(text) if _read_number(one.group()) == value]


def _read_number(text: str) -> float | None:
    """Return the finite value of a number, or None for any other text."""
    try:
        value = float(_SEPARATOR.sub("", text).replace("\u2212", "-"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


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
