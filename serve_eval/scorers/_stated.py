"""Find which one of a few given answers a text states.

A text that lists the answers, denies them or asks about them states none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Generic, NamedTuple, TypeVar

from serve_eval.scorers._plain_text import BOX, UNBOX, prepare, prepare_words
from serve_eval.scorers._statements import (
    AS_WORD,
    JOINED,
    NEGATED_BEHIND,
    QUESTION,
    RETRACTED,
    STARTS,
    Patterns,
    compile_patterns,
    find_starts,
    is_negated_before,
)

T = TypeVar("T")

TAIL = 80
"""Characters at the end of a text in which its last word is."""
NEAR = 400
"""Characters behind a word in which a list of answers goes on."""
MOST = 50
"""Claims such as "B is correct" that are compared."""
_SMALL_WORD = re.compile(r"\s[a-z]")
_RIGHT = re.compile("correct|right|best|true|accurate|valid")
_BETWEEN_BOXES = re.compile(r"[\W\d]{0,8}(?:and|or|und|oder)?\W{0,8}")


class _Statement(NamedTuple, Generic[T]):
    """A place where a text states the meaning of a word, or several, which is no answer."""

    start: int
    end: int
    meaning: T | None


def find_stated(text: str, meanings: Mapping[str, T]) -> T | None:
    """Return the meaning of the word that a text states; None if it states none, or several.

    The word is the last one that is boxed or follows "answer is", "Answer:", "the correct option
    is" or "I choose"; else the one that is called right or is alone on the last line; else the one
    that the text begins with; else the one that it ends with, as in "so it is B"; else the only one
    that it mentions.
    """
    if (bare := text.strip()) in meanings:
        return meanings[bare]
    words = prepare_words(tuple(meanings))
    if words is None:
        return _Reading(text, meanings).read()
    return _Reading(prepare(text), dict(zip(words, meanings.values(), strict=True))).read()


class _Reading(Generic[T]):
    """One text, read for one set of words."""

    def __init__(self, text: str, meanings: Mapping[str, T]) -> None:
        self.text = text
        self.small = text.lower()
        self.known = {word.casefold(): meaning for word, meaning in meanings.items()}
        self.all = set(meanings.values())
        self.patterns: Patterns = compile_patterns(tuple(meanings))

    def read(self) -> T | None:
        strong = self._last_claim() or self._find_called_right() or self._read_beginning()
        if strong is not None:
            return self._after_retraction(strong)
        if (found := self._read_end()) is not None:
            return found
        mentioned = self._find_mentioned(0)
        return mentioned.pop() if len(mentioned) == 1 else None

    def _last_claim(self) -> _Statement[T] | None:
        """Return the last box or claim; the earlier ones are not looked at."""
        boxes = list(self._find_boxes()) if BOX in self.text else []
        box = None if not boxes or self._lists_all(boxes) else boxes[-1]
        for found in self._find("answer", "other", "chosen"):
            if box is not None and found.start() < box.start:
                break
            if (statement := next(self._check(found), None)) is not None:
                return statement
        return box

    def _find(self, *names: str) -> list[re.Match[str]]:
        """Return the matches of some patterns, the last one first."""
        found = [one for name in names for one in self._match(name)]
        found.sort(key=lambda one: one.start("word"), reverse=True)
        return found

    def _match(self, name: str) -> Iterator[re.Match[str]]:
        """Yield the matches of a pattern, from the places at which its sentences can begin."""
        pattern = getattr(self.patterns, name)
        if name not in STARTS or len(self.small) != len(self.text):
            yield from pattern.finditer(self.text)
            return
        for start in find_starts(name, self.small):
            if found := pattern.match(self.text, start):
                yield found

    def _check(self, found: re.Match[str]) -> Iterator[_Statement[T]]:
        """Yield what a claim states: nothing for a question, a denial, an article or a list of all.

        A statement of several words has no meaning.
        """
        start, end = found.span("word")
        meaning = self._meaning(found)
        negated = is_negated_before(self.text, found.start())
        if meaning is None or negated or self._is_denied(end):
            return
        opened = self.text[start - 1 : start] in ("(", "[", BOX)
        if found["word"] in ("A", "I") and not opened and AS_WORD.match(self.text, end):
            return
        if listed := self._read_list(start, end, meaning):
            if len(listed) < len(self.all):
                yield _Statement(start, end, None)
            return
        below = "\n" in self.text[found.start() : start]
        if not self._is_enumerated(start, end, meaning, below=below):
            yield _Statement(start, end, meaning)

    def _is_denied(self, end: int) -> bool:
        """Return True if the word that ends at a place is asked about or denied behind it."""
        return bool(QUESTION.match(self.text, end) or NEGATED_BEHIND.match(self.text, end))

    def _read_list(self, start: int, end: int, meaning: T) -> set[T]:
        """Return the meanings of a list such as "A, B or C" whose first word is at a place.

        A small letter continues only a list of small letters: in "B or a mixture" it is an article.
        """
        said, limit = {meaning}, end + NEAR
        small = self.text[start:end].islower()
        while end < limit:
            found = self.patterns.listed.match(self.text, end) or self.patterns.spaced.match(
                self.text, end
            )
            if found is None or (one := self._meaning(found)) is None:
                break
            start, end = max(found.span(group) for group in found.groupdict())
            if end - start == 1 and self.text[start].islower() and not small:
                break
            said.add(one)
        return said if len(said) > 1 else set()

    def _is_enumerated(self, start: int, end: int, meaning: T, *, below: bool) -> bool:
        """Return True if the word is the label of one item of a list.

        Another label follows on the same line, or begins the next line if the word began one
        itself, or the next lines begin with the labels of all other words.
        """
        first = self.patterns.label.match(self.text, self._marks_start(start))
        if first is None or self._meaning(first) != meaning:
            return False
        line_end = self.text.find("\n", end, end + NEAR)
        stop = min(end + NEAR, len(self.text)) if line_end < 0 else line_end
        if any(
            self._meaning(label) not in (meaning, None)
            for label in self.patterns.label.finditer(self.text, end, stop)
        ):
            return True
        under = self._labels_under(line_end) - {meaning}
        return bool(under) and (below or len(under) == len(self.all) - 1)

    def _labels_under(self, line_end: int) -> set[T]:
        """Return the labels that begin the lines under a line, up to one that begins otherwise."""
        found = set[T]()
        while line_end >= 0 and len(found) < len(self.all):
            label = self.patterns.label.match(self.text, line_end + 1)
            meaning = self._meaning(label) if label else None
            if meaning is None or meaning in found:
                break
            found.add(meaning)
            line_end = self.text.find("\n", line_end + 1, line_end + NEAR)
        return found

    def _marks_start(self, start: int) -> int:
        while start and self.text[start - 1] in "\"'([{":
            start -= 1
        return start

    def _find_boxes(self) -> Iterator[_Statement[T]]:
        """Yield what boxes state. Boxes side by side with different words state several."""
        group: list[_Statement[T]] = []
        matches = list(self.patterns.boxed.finditer(self.text))
        for found, following in zip_longest(matches, matches[1:]):
            limit = following.start() if following else len(self.text)
            end = self.text.find(UNBOX, found.end("word"), limit) + 1 or limit
            if group and not _BETWEEN_BOXES.fullmatch(self.text, group[-1].end, found.start()):
                yield _join(group)
                group = []
            if (meaning := self._meaning(found)) is not None:
                group.append(_Statement(found.start(), end, meaning))
        if group:
            yield _join(group)

    def _lists_all(self, boxes: Sequence[_Statement[T]]) -> bool:
        """Return True if each of the words is boxed and none is taken back."""
        said = {one.meaning for one in boxes}
        return said >= self.all and not RETRACTED.search(self.text)

    def _find_called_right(self) -> _Statement[T] | None:
        """Return the last of "B is correct", "answer B" and a last line that is only the word."""
        if (final := next(self._last_line(), None)) is not None:
            return final
        if "answer" not in self.small and not _RIGHT.search(self.small):
            return None
        claims = self._find("right", "adjacent")[:MOST]
        found = [statement for claim in claims for statement in self._check(claim)]
        return _join(found[::-1]) if found else None

    def _last_line(self) -> Iterator[_Statement[T]]:
        """Yield the word that is alone on the last line, if the line above has no other label."""
        place = self.text.rfind("\n")
        found = self.patterns.alone.match(self.text, place) if place > 0 else None
        if found is None or (meaning := self._meaning(found)) is None:
            return
        start = self.text.rfind("\n", 0, place) + 1
        above = [self.patterns.label.match(self.text, start)]
        line = self.text[start:place].rstrip("\"')]},;")
        above += [one for one in self.patterns.mentioned.finditer(line) if one.end() == len(line)]
        if all(one is None or self._meaning(one) == meaning for one in above):
            yield _Statement(*found.span("word"), meaning)

    def _read_beginning(self) -> _Statement[T] | None:
        found = self.patterns.beginning.match(self.text)
        if found is None or (meaning := self._meaning(found)) is None:
            return None
        start, end = found.span("word")
        if self._is_denied(end) or NEGATED_BEHIND.match(self.text, end + 1):
            return None
        if self._read_list(start, end, meaning):
            return None
        if self._is_enumerated(start, end, meaning, below=True):
            return None
        return _Statement(start, end, meaning)

    def _read_end(self) -> T | None:
        found = self.patterns.last.search(self.text, max(0, len(self.text) - TAIL))
        if found is None or is_negated_before(self.text, found.start("word")):
            return None
        return None if is_negated_before(self.text, found.start()) else self._meaning(found)

    def _find_mentioned(self, place: int) -> set[T]:
        """Return what is mentioned from a place on, and neither denied nor asked.

        A letter before a small word, as in "C is" or "A patient", does not state an answer, but
        only "A" and "I" are no mention of one: with any other, no letter stands alone.
        """
        said, weak = set[T](), set[T]()
        for found in self.patterns.mentioned.finditer(self.text, place):
            meaning, end = self._meaning(found), found.end()
            denied = self._is_denied(end) or is_negated_before(self.text, found.start())
            if meaning is None or denied:
                continue
            if len(found[0]) == 1 and _SMALL_WORD.match(self.text, end) and not self._joins(end):
                weak |= set() if found[0] in ("A", "I") else {meaning}
            else:
                said.add(meaning)
        return said | weak if said else said

    def _joins(self, end: int) -> bool:
        """Return True if another of the words follows "and" or "or"."""
        joined = JOINED.match(self.text, end)
        return joined is not None and joined[1].casefold() in self.known

    def _after_retraction(self, statement: _Statement[T]) -> T | None:
        """Return the meaning, or the one other that is mentioned after "wait" or "actually"."""
        marker = RETRACTED.search(self.text, statement.end)
        if statement.meaning is None or marker is None:
            return statement.meaning
        said = self._find_mentioned(marker.end())
        if not said or statement.meaning in said:
            return statement.meaning
        return said.pop() if len(said) == 1 else None

    def _meaning(self, found: re.Match[str]) -> T | None:
        """Return the meaning of the word that a match found: one of its groups has it."""
        said = next((one for one in found.groups() if one), "")
        return self.known.get(said.casefold())


def _join(group: Sequence[_Statement[T]]) -> _Statement[T]:
    said = {statement.meaning for statement in group}
    return _Statement(group[0].start, group[-1].end, said.pop() if len(said) == 1 else None)
