"""Test the form in which a reference keeps the lengths and signs of damage of its answers."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.verdicts.reference_samples import LONGEST, StoredAnswers, pack, unpack

NINE = StoredAnswers(
    counted=True,
    lengths=(1, 256, LONGEST, LONGEST + 9, 0, 7, 8, 9, 10),
    cut=(True, False, True, False, False, False, False, False, True),
    looping=(False,) * 7 + (True, False),
    shared=(False,) * 9,
    scripts=frozenset({"LATIN", "GREEK"}),
)


@st.composite
def answers(draw: st.DrawFn) -> StoredAnswers:
    n = draw(st.integers(0, 40))
    flags = st.lists(st.booleans(), min_size=n, max_size=n).map(tuple)
    lengths = st.lists(st.integers(0, LONGEST), min_size=n, max_size=n).map(tuple)
    return StoredAnswers(
        counted=draw(st.booleans()),
        lengths=draw(lengths),
        cut=draw(flags),
        looping=draw(flags),
        shared=draw(flags),
        scripts=draw(st.frozensets(st.sampled_from(["LATIN", "HAN", "GREEK"]))),
        cut_by_run=draw(st.lists(flags, max_size=3).map(tuple)),
    )


@given(answers())
def test_answers_come_back_as_they_were(known: StoredAnswers) -> None:
    assert unpack(pack(known), len(known.lengths)) == known


def test_the_form_is_that_of_files_which_are_there() -> None:
    packed = pack(NINE)
    assert b64decode(packed.lengths)[:8] == b"\x01\x00\x00\x01\xff\xff\xff\xff"
    assert (b64decode(packed.cut), b64decode(packed.looping)) == (b"\x05\x01", b"\x80\x00")
    assert (packed.unit, packed.scripts) == ("tokens", ["GREEK", "LATIN"])
    assert pack(replace(NINE, counted=False)).unit == "characters"


def test_the_cuts_of_all_runs_are_known_or_none_are() -> None:
    other = tuple(not one for one in NINE.cut)
    known = replace(NINE, cut_by_run=(NINE.cut, other, NINE.cut))
    assert known.list_cuts(3) == (NINE.cut, other, NINE.cut)
    assert known.take([7, 0]).cut_by_run == ((False, True), (True, False), (False, True))
    assert NINE.list_cuts(1) == (NINE.cut,)  # a file of one run, of before they were kept
    assert NINE.list_cuts(3) is None


def test_the_answers_to_some_prompts_are_taken_in_their_order() -> None:
    found = NINE.take([7, 0])
    assert (found.lengths, found.cut, found.looping) == ((9, 1), (False, True), (True, False))
    assert (found.shared, found.scripts) == ((False, False), NINE.scripts)


@pytest.mark.parametrize(
    ("damage", "n", "why"),
    [
        ({}, 8, "lengths do not belong to 8"),
        ({"unit": "words"}, 9, "lengths do not belong to 9"),
        ({"cut": "AA=="}, 9, "a bitmap of 1 bytes does not hold 9 flags"),
        ({"shared": "AAAA"}, 9, "a bitmap of 3 bytes does not hold 9 flags"),
    ],
)
def test_data_of_another_number_of_answers_is_refused(
    damage: dict[str, Any], n: int, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        unpack(msgspec.structs.replace(pack(NINE), **damage), n)
