"""Say in one line how a command ended, for annotations, summaries, JUnit files and chat. Pure.

`write_line` is the only place that makes the sentence, so it is the same wherever it is shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from serve_eval.report.text import clean

MOST = 500
"""Characters of the line at most."""
_LEAST_CAUSE = 24
"""Characters of a cause that are worth showing."""
_LIMITS = {
    "outcome": 40, "about": 240, "figures": 110, "counts": 90, "others": 140, "notice": 80,
}  # fmt: skip
"""Characters of each part at most. The longest counts fit: they are never shortened."""
_MOST_OF_PLACE = 120
_LEAST = {"about": 50, "place": 40, "figures": 40, "notice": 40}
"""The least length of each part that is shortened, in this order, if the line is too long without
a cause."""
_UNSEEN = re.compile(r"[\u00ad\u200b-\u200d\u2060-\u2064\ufeff\ufff9-\ufffb\ud800-\udfff]")
"""Characters without width, and halves of pairs, which no chat system takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLine:
    """The parts of the line about one test: its outcome, its subject, and the reason.

    `figures` are its value with the reference, `counts` the samples, `cause` is the likeliest one
    (empty: none is known or needed), or if `sure` the reason itself, `others` counts the outcomes
    of all tests if there are more, and `place` is a link or a path. A `notice` comes first.
    """

    outcome: str
    about: str
    figures: str = ""
    counts: str = ""
    cause: str = ""
    sure: bool = False
    others: str = ""
    place: str = ""
    notice: str = ""


def write_line(one: OneLine) -> str:
    """Return the line: plain text of at most MOST characters, without control characters.

    If it is too long, the cause is shortened first, and the counts never.
    """
    part = {name: _flatten(getattr(one, name), most) for name, most in _LIMITS.items()}
    part["place"] = _flatten_start(one.place, _MOST_OF_PLACE)
    for name, least in _LEAST.items():
        room = len(part[name]) - max(0, len(_join(part)) - MOST)
        shorten = _flatten_start if name == "place" else _flatten
        part[name] = shorten(part[name], max(least, room))
    prefix = "" if one.sure else "likely: "
    room = MOST - len(_join(part)) - len(f"; {prefix}")
    cause = _flatten(one.cause, room) if room >= _LEAST_CAUSE else ""
    return _join(part, f"{prefix}{cause}" if cause else "")


def _join(part: Mapping[str, str], cause: str = "") -> str:
    """Return the line of its parts."""
    head = f"{part['outcome']} {part['about']}".rstrip()
    head = f"{part['notice']}: {head}" if part["notice"] else head
    figures = "; ".join(filter(None, (part["figures"], part["counts"])))
    before = ": ".join(filter(None, (head, figures)))
    return "; ".join([before, *filter(None, (cause, part["others"], part["place"]))])


def lead(lines: Sequence[OneLine], ranks: Sequence[int], noun: str) -> list[OneLine]:
    """Return the lines, of which the worst one, that with the lowest rank, speaks for all.

    It also counts the outcomes of the others, the worst ones first. `noun` is that of several.
    """
    if len(lines) < 2:
        return list(lines)
    order = sorted(range(len(lines)), key=lambda place: ranks[place])
    counts = Counter(lines[place].outcome for place in order)
    said = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    worst = order[0]
    led = replace(lines[worst], others=f"of {len(lines)} {noun}: {said}")
    return [*lines[:worst], led, *lines[worst + 1 :]]


def describe_drop(
    value: str,
    reference: str,
    drop: str = "",
    interval: Iterable[str] = (),
    *,
    names: tuple[str, str] = ("", ""),
) -> str:
    """Return a value against its reference: "52.1 against 59.3 (drop 7.2 [4.4, 10.0])".

    `drop` has its word; `names` are those of the value and of the reference.
    """
    shown = " ".join(filter(None, (names[0], value)))
    if not reference:
        return shown
    against = " ".join(filter(None, (names[1], reference)))
    ends = ", ".join(interval)
    inner = f"{drop} [{ends}]" if ends else drop
    return f"{shown} against {against}{f' ({inner})' if inner else ''}"


def _flatten(text: str, most: int) -> str:
    """Return a text on one line, shortened at its end."""
    flat = " ".join(_UNSEEN.sub("", clean(text)).split())
    return flat if len(flat) <= most else f"{flat[: most - 3].rstrip()}..."


def _flatten_start(text: str, most: int) -> str:
    """Return a link or a path on one line, shortened at its beginning: its end tells more."""
    flat = _flatten(text, len(text))
    return flat if len(flat) <= most else f"...{flat[3 - most :]}"
