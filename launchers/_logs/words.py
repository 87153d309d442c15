"""Find the regular expressions of a table that can match a line, by words that a match must have.

A table of hundreds of patterns takes a millisecond for each line of a log; most lines have none of
the words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

LEAST = 4
"""Minimum characters of a word that is looked for; parts of this length are compared."""
_FLAGS = re.compile(r"\(\?[aimsx]+\)")
_OPENING = re.compile(r"\?(?:[aimsx]*:|P<\w+>)")
_COUNT = re.compile(r"(?:[?*+]|\{[\d,]*\})\??")
_CLASSES = "wWdDsSbBAZ"


class WordIndex:
    """Finds the patterns of a table that can match a text."""

    def __init__(self, patterns: Sequence[str]) -> None:
        words = [find_required_words(one) for one in patterns]
        common = Counter(part for each in words for word in each for part in _parts(word))
        self._always = {number for number, each in enumerate(words) if not each}
        self._numbers: dict[str, set[int]] = {}
        for number, each in enumerate(words):
            for word in each:
                rarest = min(_parts(word), key=common.__getitem__)
                self._numbers.setdefault(rarest, set()).add(number)

    def candidates(self, text: str) -> list[int]:
        """Return the numbers of the patterns that can match, in their order."""
        found = set(self._always)
        for part in self._numbers.keys() & set(_parts(text.lower())):
            found |= self._numbers[part]
        return sorted(found)


def _parts(text: str) -> list[str]:
    return [text[place : place + LEAST] for place in range(len(text) - LEAST + 1)]


def find_required_words(pattern: str) -> tuple[str, ...]:
    """Return words in lower case of which a text must have one, whatever its case.

    Empty if a branch of the pattern has no word of LEAST characters, so that any text can match.
    """
    found: list[str] = []
    for branch in _split_branches(_FLAGS.sub("", pattern, count=1)):
        best = max(_list_choices(branch), key=lambda one: (_shortest(one), -len(one)))
        if _shortest(best) < LEAST:
            return ()
        found += best
    return tuple(found)


def _shortest(words: tuple[str, ...]) -> int:
    return min((len(one) for one in words), default=0)


def _list_choices(branch: str) -> Iterator[tuple[str, ...]]:
    """Yield sets of words; each match of a branch has one word of every set."""
    run = ""
    for item, count in _split_items(branch):
        literal = _literal(item) if count in ("", "+") else ""
        run += literal
        if not literal or count:
            yield (run.lower(),)
            run = ""
        if item[0] == "(" and count in ("", "+") and (inner := _inner(item)) is not None:
            yield find_required_words(inner)
    yield (run.lower(),)


def _split_items(branch: str) -> Iterator[tuple[str, str]]:
    """Yield the characters, classes and groups of a branch with their quantifiers."""
    place = 0
    while place < len(branch):
        end = _end_of_item(branch, place)
        count = _COUNT.match(branch, end)
        yield branch[place:end], "" if count is None else count[0]
        place = end if count is None else count.end()


def _literal(item: str) -> str:
    """Return the character that an item of a pattern always matches; empty if there is none."""
    if item[0] == "\\":
        return "" if item[1] in _CLASSES or item[1].isdigit() else item[1]
    return "" if item[0] in "[.^$(" else item


def _inner(group: str) -> str | None:
    """Return the pattern in a group; None for one that looks ahead or back."""
    opening = _OPENING.match(group, 1)
    if opening is None and group[1] == "?":
        return None
    return group[opening.end() if opening else 1 : -1]


def _split_branches(pattern: str) -> list[str]:
    """Return the alternatives of a pattern, without those in groups."""
    found, start, place = [], 0, 0
    while place < len(pattern):
        if pattern[place] == "|":
            found.append(pattern[start:place])
            start = place + 1
        place = _end_of_item(pattern, place)
    return [*found, pattern[start:]]


def _end_of_item(pattern: str, place: int) -> int:
    """Return where the character, class or group ends that begins at a place."""
    first = pattern[place]
    if first == "\\":
        return place + 2
    if first == "[":
        end = place + 2 if pattern[place + 1] != "^" else place + 3
        while pattern[end - 1] == "\\" or pattern[end] != "]":
            end += 1
        return end + 1
    if first != "(":
        return place + 1
    place += 1
    while pattern[place] != ")":
        place = _end_of_item(pattern, place)
    return place + 1
