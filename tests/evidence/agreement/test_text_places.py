"""The places at which different texts part."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from serve_eval.evidence.agreement.answer_pairs import measure_places
from serve_eval.schema import TextPlaces


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
