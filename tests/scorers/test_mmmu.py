from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.schema import Outcome
from serve_eval.scorers import mmmu
from serve_eval.scorers.mmmu import STATED, choice, find_given_letter, short_answer

OPTIONS = ["a red cat", "blue", "$12$", "none of them"]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("B.", "B"),
        ("(C)", "C"),
        ("(A) or rather (B)", "B"),
        ("(A), though D is near", "A"),
        ("A is wrong, B is right", "B"),
        ("It is clearly blue, and not A Red Cat at all", "A"),
        ("blue", None),
        ("B\n", None),
        ("", None),
        ("E", None),
    ],
)
def test_the_letter_that_is_given(text: str, letter: str | None) -> None:
    assert find_given_letter(text, OPTIONS) == letter


def test_nothing_is_guessed() -> None:
    assert choice("I cannot see it", "A", OPTIONS).outcome is Outcome.UNPARSED
    assert choice("(B)", "A", OPTIONS).outcome is Outcome.WRONG
    assert choice("(A)", "A", OPTIONS).value == 1.0


def test_the_stated_letter_stands_beside_it() -> None:
    score = choice("**Answer:** B\nso not (A)", "B", OPTIONS)
    assert (score.value, score.answer, score.parts) == (0.0, "A", {STATED: 1.0})
    assert choice("B", "B", OPTIONS).parts == {STATED: 1.0}


@pytest.mark.parametrize(
    ("text", "accepted", "right"),
    [
        ("12", ["12"], True),
        ("The total is 1,200.004", ["1200"], True),
        ("x = 3.456", ["3.46"], True),
        ("x = 4\nso 3", ["4"], False),
        ("so 3\nx = 4", ["4"], True),
        ("Therefore the answer is 6e3.", ["6000"], True),
        ("Phototropism", ["phototropism"], True),
        ("It is phototropism in plants", ["Phototropism"], True),
        ("112", ["12"], False),
        ("ax", ["X"], False),
        ("ax y", ["X"], True),
        ("x y", ["X"], True),
        ("7", ["8", "7"], True),
        ("", ["7"], False),
    ],
)
def test_short_answers(text: str, accepted: list[str], right: bool) -> None:
    assert (short_answer(text, accepted).value == 1.0) == right


PLAINER = (
    re.compile(r"-?\d+(?:\.\d+)?e[+-]?\d+"),
    re.compile(r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?!e[+-]?\d+)(?![,\d])"),
)
"""The original's patterns, which retry from every digit of a long run."""


@given(
    st.lists(st.sampled_from(["-", "1", "23", ".", "e", "+", ",", "x", " "]), max_size=14).map(
        "".join
    )
)
def test_the_numbers_are_those_of_the_original(text: str) -> None:
    assert [pattern.findall(text) for pattern in mmmu._NUMBERS[1:]] == [
        pattern.findall(text) for pattern in PLAINER
    ]


def test_a_long_run_of_digits_is_read_in_time_that_grows_with_its_length() -> None:
    assert short_answer("x" + "1" * 300_000 + "y", ["7"]).value == 0.0
