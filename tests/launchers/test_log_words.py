"""Test that the index of words leaves out no pattern that matches."""

from __future__ import annotations

import re

import pytest

from serve_eval.launchers._logs.causes import (
    WordIndex,
    find_known,
    find_required_words,
    read_causes,
)
from tests.launchers.failure_logs import every, sound


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("CUDA out of memory", ("cuda out of memory",)),
        ("ab?cdef|x(foos|bars)yyy", ("cdef", "foos", "bars")),
        (r"(?i)\b(heads?|layers)\b[^.]{0,80}divides", ("divides",)),
        (r"\[type=(a|b)", ("[type=",)),
        (r"Only \d+ GPUs? (is|are) available", (" available",)),
        (r"a[]x]bcde", ("bcde",)),
        (r"[^]]abcd", ("abcd",)),
        (r"(foos|bars)?wxyz", ("wxyz",)),
        (r"(?!abcd)def(ghij)+", ("ghij",)),
        (r"ab{2,3}cdef", ("cdef",)),
        (r"(?P<name>abcd)ef", ("abcd",)),
        ("abc|defgh", ()),
        (r"\d+", ()),
    ],
)
def test_the_words_that_a_match_must_have(pattern: str, words: tuple[str, ...]) -> None:
    re.compile(pattern)
    assert find_required_words(pattern) == words


def test_a_pattern_without_words_is_always_a_candidate() -> None:
    index = WordIndex([r"\d+", "abcdef", "uvwxyz"])
    assert index.candidates("some ABCDEF") == [0, 1]
    assert index.candidates("ab") == [0]


def test_the_index_finds_the_row_that_a_search_of_all_finds() -> None:
    for one in (*every(), *sound()):
        for line in one.log.splitlines():
            slow = next(
                (row for row in read_causes() if row.can_be_of(one.engine) and row.shows_in(line)),
                None,
            )
            assert find_known(line, one.engine) == slow, line
