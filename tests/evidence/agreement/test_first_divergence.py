"""Test the places at which answers part, by tokens and by texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from serve_eval.evidence.answer_pairs import measure_places
from serve_eval.evidence.answer_texts import (
    describe_first_divergences,
    draw_first_divergences,
    find_first_divergences,
    find_token,
    part,
    read_first_divergences,
)
from serve_eval.schema import FirstDivergences, Parting, TextPlaces


@pytest.mark.parametrize(
    ("one", "other", "character", "word", "before"),
    [
        ("so 12", "so 13", 4, 1, "so 1"),
        ("so 12", "so", 2, 0, "so"),
        ("so 12", "so 2", 3, 1, "so "),
        ("", "a", 0, 0, ""),
        ("x" * 100 + "a", "x" * 100 + "b", 100, 0, "x" * 48),
    ],
)
def test_texts_part_at_their_first_different_character(
    one: str, other: str, character: int, word: int, before: str
) -> None:
    found = part(one, other)
    assert found is not None
    assert (found.character, found.word, found.token, found.before) == (
        character,
        word,
        None,
        before,
    )
    assert (found.before + found.a).endswith(one[character:][:48])
    assert (found.a, found.b) == (one[character:][:48], other[character:][:48])


def test_equal_texts_do_not_part() -> None:
    assert part("a", "a", ["a"]) is None
    assert find_first_divergences([]) is None


@pytest.mark.parametrize(
    ("tokens", "one", "other", "found"),
    [
        (["so", " 1", "2"], "so 12", "so 13", 2),
        (["so", " 12"], "so 12", "so 13", 1),
        (["so", " 1", "3", "!"], "so 12", "so 13", 2),  # those of the other answer
        (["so", " 1", "7"], "so 12", "so 13", 2),  # a third answer that begins alike
        (["so", " 2"], "so 12", "so 13", None),  # one that departs sooner
        (["so"], "so", "so 13", 1),  # an answer that ends there
        (["so", " 13"], "so", "so 13", 1),
        (["so"], "so 12", "so 13", None),
        ([], "", "a", 0),
    ],
)
def test_the_token_of_a_place(
    tokens: Sequence[str], one: str, other: str, found: int | None
) -> None:
    for parting in (part(one, other, tokens), part(other, one, tokens)):
        assert parting is not None
        assert parting.token == found
        assert find_token(tokens, parting.character, parting.before) == found


def _summarize(*places: int | None, alike: bool = False) -> FirstDivergences:
    """Summarize partings at these tokens (None: not known); the words are one further each."""
    partings = [
        Parting(
            character=9,
            word=i if place is None else place + 1,
            token=place,
            before="The answer is " if alike else f"{i} and ",
            a="1",
            b="2",
        )
        for i, place in enumerate(places)
    ]
    found = find_first_divergences(partings)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("found", "words", "reading"),
    [
        (_summarize(*[9] * 5), "always token 9 (5 of 5)", "look at the step that begins there"),
        (_summarize(*[9] * 4), "token 9 in 4 of 4", ""),
        (_summarize(*[9] * 6, 1, 2, 30), "token 9 in 6 of 9", "look at the step"),
        (_summarize(*[9] * 6, 1, 2, 30, 31), "token 9 in the median, from 1 to 31", ""),
        (_summarize(*[0] * 8), "always token 0 (8 of 8)", "look at the prompt and its KV cache"),
        (_summarize(*[1] * 8), "always token 1 (8 of 8)", "look at the first step of generation"),
        (_summarize(*[3] * 8, alike=True), "always token 3 (8 of 8)", "the answers begin alike"),
        (_summarize(*[0] * 8, alike=True), "always token 0 (8 of 8)", "look at the prompt"),
        (_summarize(*[7] * 5, *[None] * 5), "always token 7 (5 of 5)", "look at the step"),
        (_summarize(*[7] * 2, *[None] * 5), "word 5 in the median, from 2 to 8", ""),
    ],
)
def test_the_words_of_a_usual_place(found: FirstDivergences, words: str, reading: str) -> None:
    assert describe_first_divergences(found) == words
    read = read_first_divergences(found)
    assert read.startswith(reading)
    assert bool(read) == bool(reading)


def test_pairs_without_a_token_are_counted_beside_the_others() -> None:
    found = _summarize(*[7] * 5, *[None] * 5)
    assert (found.unit, found.parted, found.unplaced) == ("token", 5, 5)
    found = _summarize(*[7] * 4, *[None] * 5)
    assert (found.unit, found.parted, found.unplaced) == ("word", 9, 0)


def test_the_histogram_fits_in_80_columns() -> None:
    found = _summarize(0, 9, 9, 8, 40)
    assert list(draw_first_divergences(found)) == [
        "  token 0           1  #",
        "  tokens 1-3        0",
        "  tokens 4-7        0",
        "  tokens 8-15       3  ###",
        "  tokens 16-31      0",
        "  tokens 32+        1  #",
    ]
    many = replace(found, counts={**found.counts, "0": 90_000})
    assert max(map(len, draw_first_divergences(many))) <= 80
    assert list(draw_first_divergences(replace(found, counts={"0": 2}))) == [
        "  token 0           2  ##"
    ]


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([], None),
        ([("same", "same"), ("", "")], None),
        ([("abcd", "abXd"), ("same", "same")], (1, 0, 2.0, 0.5)),
        ([("abcd", "Xbcd"), ("abcd", "abcX")], (2, 1, 1.5, 0.375)),
        ([("", "abcd")], (1, 1, 0.0, 0.0)),
        ([("ab", "abcd"), ("abcd", "a"), ("abcdefgh", "abcdefg")], (3, 0, 2.0, 0.5)),
    ],
)
def test_the_first_differing_characters_of_texts(
    pairs: Sequence[tuple[str, str]], found: tuple[int, int, float, float] | None
) -> None:
    told = measure_places(pairs)
    if found is None:
        assert told is None
        return
    texts, at_start, character, share = found
    assert told == TextPlaces(
        texts=texts, at_start=at_start, median_character=character, median_share=share
    )
