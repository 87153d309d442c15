"""Name the causes for which two sides read a prompt as different tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import NamedTuple

from serve_eval.evidence.prompt_tokens import (
    NamedCause,
    PromptCause,
    PromptFinding,
    PromptReading,
    looks_special,
    shorten_prompt,
)
from serve_eval.schema import Message, Prompt


def compare(
    expected: PromptReading, found: PromptReading, *, prompt: Prompt, today: date
) -> list[PromptFinding]:
    """Return the findings about one prompt, of which there is at least one.

    `found` is the reading of the endpoint in question, `expected` that of the other side. A wrong
    first token, a date, and routes that disagree are findings of their own, next to any other
    difference.
    """
    named = list(_check_routes(expected, found))
    if expected.ids is None or found.ids is None:
        named.append(_compare_counts(expected, found))
    else:
        named += _compare_ids(expected, found, prompt, today)
    same = _same(expected, found)
    if not named:
        told = f"{found.length} tokens on both sides ({found.source}, {expected.source})"
        named = [NamedCause(PromptCause.SAME, told)]
    return [
        PromptFinding(prompt=shorten_prompt(prompt), cause=one.cause, told=one.told, same=same)
        for one in named
    ]


def _same(expected: PromptReading, found: PromptReading) -> bool | None:
    """Return if both sides read the same tokens, None if that is not known.

    Ids that are not as many as answers count are not those that the engine read.
    """
    if expected.ids and found.ids and expected.agrees and found.agrees:
        return expected.ids == found.ids
    if expected.length is None or found.length is None or expected.length == found.length:
        return None
    return False


def _check_routes(*readings: PromptReading) -> Iterator[NamedCause]:
    for one in readings:
        if not one.agrees:
            told = f"{one.side}: {one.source} gives {len(one.ids or ())} tokens"
            yield NamedCause(
                PromptCause.ROUTES_DISAGREE, f"{told}, but its answers count {one.count}"
            )


def _compare_counts(expected: PromptReading, found: PromptReading) -> NamedCause:
    for one in (found, expected):
        if one.length is None:
            return NamedCause(PromptCause.NOT_READ, f"{one.side}: {one.problem}")
    assert expected.length is not None
    assert found.length is not None
    if expected.length == found.length:
        told = f"{found.length} tokens on both sides; ids are not available"
        return NamedCause(PromptCause.SAME_COUNT, told)
    more = found.length - expected.length
    word = "more" if more > 0 else "fewer"
    told = f"{found.side} counts {found.length} tokens, {abs(more)} {word} than {expected.side}"
    return NamedCause(PromptCause.COUNT_DIFFERS, f"{told}; ids are not available")


def _compare_ids(
    expected: PromptReading, found: PromptReading, prompt: Prompt, today: date
) -> list[NamedCause]:
    named, expected, found = split_first_token(expected, found, prompt)
    if expected.ids != found.ids:
        named.append(name_difference(expected, found, prompt))
    if isinstance(prompt, str) or any(one.cause is PromptCause.DATE for one in named):
        return named
    asked = "\n".join(turn.text for turn in prompt)
    for one in (found, expected):
        written = find_today(one.text or "", today)
        if written is not None and written not in asked:
            told = f"the chat template of {one.side} writes the date {written}"
            return [*named, NamedCause(PromptCause.DATE, told)]
        if one.dated:
            told = f"the chat template of {one.side} renders another text on another day"
            return [*named, NamedCause(PromptCause.DATE, told)]
    return named


def split_first_token(
    expected: PromptReading, found: PromptReading, prompt: Prompt
) -> tuple[list[NamedCause], PromptReading, PromptReading]:
    """Return findings about the first token, and both readings without its copies.

    Nothing is removed if the first token is not known: from the files of the model, or because one
    side has exactly this token more.
    """
    bos = expected.bos if expected.bos is not None else found.bos
    if bos is None:
        bos = _guess(expected, found, prompt)
    if bos is None:
        return [], expected, found
    copies, name = _count(found, bos), _name(bos, found, expected)
    named = [
        NamedCause(PromptCause.BOS_DOUBLED, f"{one.side} begins {count} times with {name}")
        for one in (found, expected)
        if (count := _count(one, bos)) > 1
    ]
    lacking = _count(expected, bos)
    if lacking and not copies:
        told = f"{found.side} lacks the first token {name} of {expected.side}"
        named.append(NamedCause(PromptCause.BOS_MISSING, told))
    elif copies and not lacking:
        told = f"{found.side} begins with {name}; {expected.side} does not"
        named.append(NamedCause(PromptCause.BOS_ADDED, told))
    return named, _without(expected, lacking), _without(found, copies)


def _guess(expected: PromptReading, found: PromptReading, prompt: Prompt) -> int | None:
    """Return a token that one side has more than the other at its beginning, or twice, or None.

    A text that begins with white space can lose that as its first token.
    """
    for longer, shorter in ((found, expected), (expected, found)):
        ids = longer.ids or ()
        if len(ids) < 2:
            continue
        if longer.pieces is not None and not looks_special(longer.pieces[0]):
            continue
        if longer.pieces is None and isinstance(prompt, str) and prompt[:1].isspace():
            continue
        doubled = longer.pieces is not None and ids[0] == ids[1]
        if ids[1:] == shorter.ids or doubled:
            return ids[0]
    return None


def _count(reading: PromptReading, bos: int) -> int:
    ids = reading.ids or ()
    return next((at for at, token in enumerate(ids) if token != bos), len(ids))


def _name(bos: int, *readings: PromptReading) -> str:
    for one in readings:
        if one.pieces and one.ids and one.ids[0] == bos:
            return f"{one.pieces[0]} (id {bos})"
    return f"id {bos}"


def _without(reading: PromptReading, copies: int) -> PromptReading:
    pieces = None if reading.pieces is None else reading.pieces[copies:]
    return replace(reading, ids=(reading.ids or ())[copies:], pieces=pieces)


_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?"
_DATES = re.compile(
    rf"(?<!\d)(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{4}}"
    rf"|\d{{1,2}} {_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}},? \d{{4}})(?!\d)"
)
_WEEKDAY = re.compile(r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b")
_MONTHS = "January February March April May June July August September October November December"


def list_dates(text: str) -> list[str]:
    """Return the dates in a text, as written."""
    return _DATES.findall(text)


def mask_dates(text: str) -> str:
    """Return a text with every date and weekday replaced by the same word."""
    return _WEEKDAY.sub("<weekday>", _DATES.sub("<date>", text))


def find_today(text: str, today: date) -> str | None:
    """Return the date of today in a text, as written, or None.

    The dates of the days before and after count too: the server may have another time zone.
    """
    near = [today + timedelta(days=days) for days in (-1, 0, 1)]
    known = {form for day in near for form in _formats(day)}
    return next((one for one in list_dates(text) if _normalize(one) in known), None)


def _formats(day: date) -> list[str]:
    month, year = _MONTHS.split()[day.month - 1], day.year
    names = [month, month[:3], *(["Sept"] if day.month == 9 else [])]
    numbers = [(year, day.month, day.day), (day.month, day.day, year), (day.day, day.month, year)]
    worded = [f"{day.day} {name} {year}" for name in names]
    worded += [f"{name} {day.day} {year}" for name in names]
    return worded + ["-".join(map(str, one)) for one in numbers]


def _normalize(written: str) -> str:
    """Return a date without commas, leading zeros and the choice of a separator."""
    if written[-1].isdigit() and not re.search(r"[A-Za-z]", written):
        return "-".join(str(int(part)) for part in re.split(r"[-/.]", written))
    return " ".join(part.lstrip("0") for part in re.sub(r"[,.]", "", written).split())


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
        lambda: _find_spaces(
            one,
            other,
            (prompt,) if isinstance(prompt, str) else tuple(turn.text for turn in prompt),
        ),
        lambda: _find_system(one, other, chat) if chat else None,
        lambda: _find_template(one, other, chat) if chat else None,
    ]
    named = next((told for rule in rules if (told := rule()) is not None), None)
    return named or _first_difference(expected, found)


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
