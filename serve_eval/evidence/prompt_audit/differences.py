"""Name the difference between two readings of a prompt by the texts of their tokens. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from serve_eval.evidence.prompt_audit.causes import PromptCause
from serve_eval.evidence.prompt_audit.dates import list_dates, mask_dates
from serve_eval.evidence.prompt_audit.pieces import looks_special
from serve_eval.evidence.prompt_audit.reading import NamedCause, PromptReading
from serve_eval.schema import Message, Prompt

_SPACES = re.compile(r"[\s▁]+")
_SYSTEM = re.compile(r"system|<<SYS>>", re.IGNORECASE)
SHOWN = 60
"""Most characters of a text that a finding shows."""


class _SideText(NamedTuple):
    side: str
    text: str
    pieces: Sequence[str]


def name_difference(expected: PromptReading, found: PromptReading, prompt: Prompt) -> NamedCause:
    """Return the cause of a difference, of two readings with different ids.

    Without the texts of both sides it is the first different token.
    """
    if expected.pieces is None or found.pieces is None:
        return _first_difference(expected, found)
    one, other = (
        _SideText(reading.side, reading.text or "", reading.pieces or ())
        for reading in (expected, found)
    )
    chat = () if isinstance(prompt, str) else prompt
    rules: list[Callable[[], NamedCause | None]] = [
        lambda: _find_same_text(one, other),
        lambda: _find_dates(one, other),
        lambda: _find_spaces(one, other, (prompt,) if isinstance(prompt, str) else _texts(prompt)),
        lambda: _find_system(one, other, chat) if chat else None,
        lambda: _find_template(one, other, chat) if chat else None,
    ]
    named = next((told for rule in rules if (told := rule()) is not None), None)
    return named or _first_difference(expected, found)


def _texts(prompt: Sequence[Message]) -> tuple[str, ...]:
    return tuple(turn.text for turn in prompt)


def _find_same_text(expected: _SideText, found: _SideText) -> NamedCause | None:
    """Name a special token that one side spells out, or another tokenizer for the same text."""
    if _SPACES.sub("", expected.text) != _SPACES.sub("", found.text):
        return None
    for side, other in ((found, expected), (expected, found)):
        marks = Counter(filter(looks_special, other.pieces))
        marks.subtract(filter(looks_special, side.pieces))
        if mark := next((mark for mark, more in marks.items() if more > 0), None):
            told = f"{side.side} reads {mark} as text; it is one token of {other.side}"
            return NamedCause(PromptCause.SPECIAL_AS_TEXT, told)
    if expected.text != found.text:
        return None
    told = f"{found.side} reads the same text as {len(found.pieces)} tokens"
    return NamedCause(
        PromptCause.OTHER_TOKENIZER,
        f"{told}, {expected.side} as {len(expected.pieces)} or as other ids",
    )


def _find_dates(expected: _SideText, found: _SideText) -> NamedCause | None:
    if mask_dates(expected.text) != mask_dates(found.text):
        return None
    pairs = zip(list_dates(found.text), list_dates(expected.text), strict=True)
    one, other = next(((a, b) for a, b in pairs if a != b), ("another weekday", "one"))
    told = f"the chat template of {found.side} writes {one}, that of {expected.side} {other}"
    return NamedCause(PromptCause.DATE, told)


def _find_spaces(
    expected: _SideText, found: _SideText, contents: Sequence[str]
) -> NamedCause | None:
    for content in contents:
        for side, other in ((found, expected), (expected, found)):
            stripped = content.strip()
            if content in side.text or content not in other.text or stripped not in side.text:
                continue
            ends = "leading and trailing"
            if content.lstrip() in side.text:
                ends = "leading"
            elif content.rstrip() in side.text:
                ends = "trailing"
            told = f"{side.side} strips the {ends} white space of {_show(content)}"
            return NamedCause(PromptCause.SPACES_STRIPPED, f"{told}; {other.side} keeps it")
    return None


def _find_system(
    expected: _SideText, found: _SideText, chat: Sequence[Message]
) -> NamedCause | None:
    """Name a system message that one side adds, drops or changes."""
    for turn in chat:
        if turn.role != "system":
            continue
        for side, other in ((found, expected), (expected, found)):
            if turn.text.strip() in other.text and turn.text.strip() not in side.text:
                told = f"{side.side} drops the system message {_show(turn.text)}"
                return NamedCause(PromptCause.SYSTEM_MISSING, told)
    first = next((turn.text.strip() for turn in chat if turn.role != "system"), "")
    heads = [side.text.partition(first)[0] for side in (expected, found)]
    if heads[0] == heads[1]:
        return None
    has = [_SYSTEM.search(head) is not None for head in heads]
    backwards = _middles(heads[0][::-1], heads[1][::-1])
    shown = [_show(text[::-1]) for text in backwards]
    if has == [False, True]:
        told = f"{found.side} adds a system message before the first turn: {shown[1]}"
        return NamedCause(PromptCause.SYSTEM_ADDED, told)
    if has == [True, False]:
        told = f"{found.side} lacks the system message of {expected.side}: {shown[0]}"
        return NamedCause(PromptCause.SYSTEM_MISSING, told)
    if has == [True, True]:
        told = f"before the first turn, {found.side} writes {shown[1]}, {expected.side} {shown[0]}"
        return NamedCause(PromptCause.SYSTEM_CHANGED, told)
    return None


def _find_template(
    expected: _SideText, found: _SideText, chat: Sequence[Message]
) -> NamedCause | None:
    """Name another template by the place of the first difference."""
    if expected.text == found.text:
        return None
    here, there = _middles(expected.pieces, found.pieces)
    last = chat[-1].text.strip()
    place = "before or between the turns"
    if expected.text.rpartition(last)[0] == found.text.rpartition(last)[0]:
        place = "after the last turn"
    told = f"{place}, {found.side} writes {_show(there)}, {expected.side} {_show(here)}"
    return NamedCause(PromptCause.OTHER_TEMPLATE, told)


def _middles(one: Sequence[str], other: Sequence[str]) -> tuple[str, str]:
    """Return the rest of two texts, or lists of texts, without their common beginning and end."""
    least = min(len(one), len(other))
    start = next((at for at in range(least) if one[at] != other[at]), least)
    most = least - start
    end = next((at for at in range(most) if one[-1 - at] != other[-1 - at]), most)
    return "".join(one[start : len(one) - end]), "".join(other[start : len(other) - end])


def _first_difference(expected: PromptReading, found: PromptReading) -> NamedCause:
    ids = found.ids or (), expected.ids or ()
    at = next((i for i, pair in enumerate(zip(*ids, strict=False)) if len(set(pair)) > 1), None)
    if at is None:
        at = min(map(len, ids))
    here, there = _token(found, at), _token(expected, at)
    told = f"first differs at token {at}: {here} of {found.side} against {there} of {expected.side}"
    return NamedCause(PromptCause.FIRST_DIFFERENCE, told)


def _token(reading: PromptReading, at: int) -> str:
    ids = reading.ids or ()
    if at >= len(ids):
        return "the end"
    return str(ids[at]) if reading.pieces is None else f"{ids[at]} {_show(reading.pieces[at])}"


def _show(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")
