"""Find signs of damage in answers, and the place where two texts part.

The numerics of a sound pair part texts anywhere. A fault that begins at a fixed step of generation
(speculation, a new cache block, a captured batch size) parts them at one token.
"""

from __future__ import annotations

import statistics
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Literal, NamedTuple

from serve_eval.schema import FirstDivergences, Parting
from serve_eval.stats.distances import common_prefix
from serve_eval.stats.sign_tests import binomial_tail

LONGEST, TIMES, LEAST_CHARS = 80, 4, 24
"""Characters of the longest period, and the repeats and characters that make a loop. The drift
alarm of a run has a flag of its own for repetitive answers, from 400 characters on; here short ones
count too, since they are judged by another side's rate."""
LEAST_LETTERS = 2
"""Letters of a foreign script that an answer needs: one may be a symbol of a formula."""
LONG_ANSWER = 20
"""Characters from which equal answers to two prompts are odd; short ones are equal by chance."""


def is_loop(text: str) -> bool:
    """Return True if a text ends with one piece written again and again, such as `!!!!`."""
    end = text.rstrip()
    for period in range(1, min(LONGEST, len(end) // TIMES) + 1):
        times = max(TIMES, -(-LEAST_CHARS // period))
        if len(end) < times * period or end[-1 - period] != end[-1]:
            continue
        if end.endswith(end[-period:] * times):
            return True
    return False


@cache
def _script(letter: str) -> str:
    """Return the first word of a letter's name, such as LATIN, CYRILLIC or CJK."""
    return unicodedata.name(letter, "?").partition(" ")[0]


def find_scripts(text: str) -> set[str]:
    """Return the scripts of which a text has LEAST_LETTERS letters or more."""
    if text.isascii():
        return set()
    counts: dict[str, int] = defaultdict(int)
    for letter in text:
        if not letter.isascii() and letter.isalpha():
            counts[_script(letter)] += 1
    return {script for script, count in counts.items() if count >= LEAST_LETTERS}


def mark_loops(texts: Sequence[str], others: Sequence[str]) -> list[bool]:
    """Return for each text whether it repeats itself to its end."""
    return [is_loop(text) for text in texts]


def mark_scripts(texts: Sequence[str], others: Sequence[str]) -> list[bool]:
    """Return for each text whether it has a script that no text of the other side has."""
    known = {script for text in others for script in find_scripts(text)}
    return [bool(find_scripts(text) - known) for text in texts]


def mark_shared(texts: Sequence[str], others: Sequence[str]) -> list[bool]:
    """Return for each text whether the same long text answers another prompt too."""
    counts: dict[str, int] = defaultdict(int)
    for text in texts:
        counts[text.strip()] += 1
    return [len(text.strip()) >= LONG_ANSWER and counts[text.strip()] > 1 for text in texts]


SIGNS: Mapping[str, Callable[[Sequence[str], Sequence[str]], list[bool]]] = {
    "repeat themselves to the end": mark_loops,
    "have letters of a script that the other side never writes": mark_scripts,
    "equal the answer to another prompt": mark_shared,
}
"""The words for a sign, and a function that marks the texts of one side, given the other's."""


STARTS = (0, 1, 4, 8, 16, 32)
"""First place of each range."""
RANGES = ("0", "1-3", "4-7", "8-15", "16-31", "32+")
LEAST_ALIKE = 5
"""Pairs that must part at one place before it is called the usual one."""
SHARE_ALIKE = (2, 3)
"""Share of the pairs that must part there, as a fraction."""
BEFORE, AFTER = 48, 48
"""Characters kept of the common text and of each continuation."""
BAR = 40
"""Characters of the longest bar."""


def part(one: str, other: str, tokens: Sequence[str] | None = None) -> Parting | None:
    """Return the place at which two answers part, or None if they are equal.

    `tokens` are the texts of the tokens of either answer, at least up to that place.
    """
    if one == other:
        return None
    character = common_prefix(one, other)
    common = one[:character]
    return Parting(
        character=character,
        word=len(common.split()) - (character > 0 and not common[-1].isspace()),
        token=None if tokens is None else find_token(tokens, character, common),
        before=common[-BEFORE:],
        a=one[character : character + AFTER],
        b=other[character : character + AFTER],
    )


def find_token(tokens: Sequence[str], character: int, common: str) -> int | None:
    """Return the token with the first different character of two texts, or None if not known.

    `common` is what both texts say before it, or the end of that. The tokens may be those of a
    third answer, if that says the same up to there.
    """
    said = "".join(tokens)
    if len(said) < character or not said[:character].endswith(common):
        return None
    ends = accumulate(map(len, tokens))
    # A text that ends where the other goes on has one token less.
    return next((place for place, end in enumerate(ends) if end > character), len(tokens))


def find_first_divergences(partings: Sequence[Parting]) -> FirstDivergences | None:
    """Summarize the places of several partings, or return None for none.

    The unit is the token if at least half of them have one, else the word.
    """
    if not partings:
        return None
    known = [one for one in partings if one.token is not None]
    unit: Literal["token", "word"] = "token" if 2 * len(known) >= len(partings) else "word"
    if unit == "word":
        known = list(partings)
    places = [_place(one, unit) for one in known]
    usual, alike = Counter(places).most_common(1)[0]
    clear = is_clear(alike, len(places))
    before = {one.before for one in known if _place(one, unit) == usual}
    counts = Counter(map(name_range, places))
    return FirstDivergences(
        unit=unit,
        parted=len(places),
        unplaced=len(partings) - len(places),
        counts={name: counts[name] for name in RANGES},
        least=min(places),
        median=float(statistics.median(places)),
        most=max(places),
        usual=usual if clear else None,
        at_usual=alike if clear else 0,
        beginnings=len(before) if clear else 0,
    )


def _place(one: Parting, unit: str) -> int:
    place = one.token if unit == "token" else one.word
    assert place is not None
    return place


def is_clear(alike: int, parted: int) -> bool:
    """Return True if enough of the pairs part at one place to say so."""
    share, whole = SHARE_ALIKE
    return alike >= LEAST_ALIKE and alike * whole >= parted * share


def name_range(place: int) -> str:
    """Return the range of a place."""
    return next(
        name for start, name in zip(STARTS[::-1], RANGES[::-1], strict=True) if place >= start
    )


def describe_first_divergences(found: FirstDivergences) -> str:
    """Return where the pairs part, such as "always token 9" (places count from 0)."""
    unit, of = found.unit, f"{found.parted} of {found.parted}"
    if found.usual is None:
        if found.least == found.most:
            return f"{unit} {found.least} in {of}"
        return f"{unit} {found.median:g} in the median, from {found.least} to {found.most}"
    if found.at_usual == found.parted:
        return f"always {unit} {found.usual} ({of})"
    return f"{unit} {found.usual} in {found.at_usual} of {found.parted}"


def read_first_divergences(found: FirstDivergences) -> str:
    """Return what to look at if most pairs part at one place, or an empty text.

    Beyond the first place, pairs that begin alike tell nothing: a form that answers share, such as
    "The answer is", also brings them to one place.
    """
    if found.usual is None:
        return ""
    if found.usual == 0:
        return "look at the prompt and its KV cache (template, prefix, transfer)"
    if found.beginnings < LEAST_ALIKE:
        return "the answers begin alike, so their form may bring them there"
    if found.unit == "token" and found.usual == 1:
        return "look at the first step of generation (the KV cache that a generation server got)"
    return "look at the step that begins there (speculation, a new cache block, a limit of tokens)"


def draw_first_divergences(found: FirstDivergences) -> Iterator[str]:
    """Yield the lines of a histogram, at most 80 columns wide."""
    filled = [name for name in RANGES if found.counts.get(name)]
    scale = max(1.0, max(found.counts.values(), default=0) / BAR)
    for name in RANGES[: RANGES.index(filled[-1]) + 1 if filled else 0]:
        count = found.counts.get(name, 0)
        label = f"{found.unit}{'s' * (name != '0')} {name}"
        yield f"  {label:<13} {count:>5}  {'#' * round(count / scale)}".rstrip()


SHORT, SOUND_AT_START = 8, 0.3
"""Characters of an answer that has no place for a difference but its start, and the chance that a
different answer of a sound side differs from its start on."""


class AtStart(NamedTuple):
    """Hold the places of the pairs that differ at all, of those from their start on, and p."""

    differ: list[int]
    start: list[int]
    p: float


def find_at_start(pairs: Sequence[tuple[str, str]]) -> AtStart:
    """Return the pairs of texts that differ, without those that are too short to tell.

    p is the probability that this many or more differ from their start on, if each does so with
    probability SOUND_AT_START.
    """
    differ = [i for i, (a, b) in enumerate(pairs) if a != b and min(len(a), len(b)) > SHORT]
    start = [i for i in differ if common_prefix(*pairs[i]) == 0]
    return AtStart(differ, start, binomial_tail(len(start), len(differ), SOUND_AT_START))
