from __future__ import annotations

import time

import pytest

from serve_eval.schema import Outcome
from serve_eval.scorers._mmmu_answer import find_letter, find_section
from serve_eval.tasks._mixed_modality import score_about


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b.", "B"),
        ("(C)\nbecause of A", "C"),
        ("The answer is (d)", "D"),
        ("answer: E or A", "E"),
        ("option B, not C", "B"),
        ("the answer about it: D", "A"),
        ("the answer is clear: D", "C"),
        ("A cat, so D", "D"),
        ("A Cat, so D", "A"),
        ("I think D", "D"),
        ("it is a dog", "A"),
        ("F", None),
        ("Because", None),
        ("", None),
    ],
)
def test_the_letter_that_an_answer_gives(text: str, letter: str | None) -> None:
    assert find_letter(text, "E") == letter


def test_a_video_has_four_options() -> None:
    assert find_letter("E, or B", "D") == "B"
    assert score_about("image", "E", "E").value == 1.0
    assert score_about("video", "E", "D").outcome is Outcome.UNPARSED


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("image: A\naudio: so it is\n said\nvideo: C", "so it is said"),
        ("Audio: one\nAUDIO : two", "two"),
        ("audio:\nvideo: C", ""),
        ("we heard audio: x", "we heard audio: x"),
        ("image: A", "image: A"),
        ("\n \n audio:  a\tb ", "a b"),
    ],
)
def test_the_section_of_a_medium_counts(text: str, section: str) -> None:
    assert find_section("audio", text) == section


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("One two three four.", True),
        ("one two", True),
        ("one", False),
        ("one two three four five six", True),
        ("one two three four five six seven", False),
        ("image: x\naudio: one two, three", True),
        ("(laughs) um, one two three four", True),
        ("", False),
    ],
)
def test_half_of_the_words_may_be_wrong(text: str, right: bool) -> None:
    assert score_about("audio", text, "one two three four").value == float(right)


def test_a_silent_clip_has_an_empty_transcript() -> None:
    assert score_about("audio", "...", "(silence)").value == 1.0
    assert score_about("audio", "hello", "(silence)").value == 0.0


@pytest.mark.parametrize("piece", [" ", "\n", "answer ", "audio\n", "audio:", "a ", "( "])
def test_long_answers_are_read_in_bounded_time(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    began = time.process_time()
    score_about("image", text, "A")
    assert time.process_time() - began < 5.0
