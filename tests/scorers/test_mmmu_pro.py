from __future__ import annotations

import time

import pytest

from serve_eval.schema import Outcome
from serve_eval.scorers._mmmu_answer import apply_post_process, shorten_answer
from serve_eval.scorers.mmmu_pro import choice

OPTIONS = [f"thing {i}" for i in range(9)]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: C", "C"),
        ("I think of A.\nAnswer: (H)", "H"),
        ("answer B\nfinal answer - d", "D"),
        ("Answer: A\nso the Answer is B", "A"),
        ("Answer: because of (D)", "B"),
        ("Answer is not clear", "I"),
        ("Answer: J\nperhaps (C)", "C"),
        ("**Answer: B**", None),
        ("It is (E)", "E"),
        ("G.", "G"),
        ("we would say it is Thing 4 and no other", "E"),
        ("no idea", None),
        ("", None),
    ],
)
def test_the_last_line_that_states_a_letter_decides(text: str, letter: str | None) -> None:
    score = choice(text, "C", OPTIONS)
    assert score.answer == letter
    assert score.value == float(letter == "C")
    assert (score.outcome is Outcome.UNPARSED) == (letter is None)


LONG = "A long explanation that says a great deal and does not come to an end. "


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("**Answer: B**", "B"),
        ("so the answer is (c) 50 kip", "C"),
        ("Answer: because", "B"),
        ("D) Phytoplasma", "D"),
        ("D: Phytoplasma", "D"),
        ("(A) True", "A"),
        ("a cat", "a cat"),
        ("C\n\nExplanation: " + LONG, "C"),
        ("**(B)**", "B"),
        ("g", "G"),
        ("$1,249", "$1,249"),
        (LONG + r"\boxed{41} or \boxed{42}.", "42"),
        (LONG + r"\boxed{41", LONG + r"\boxed{41"),
        (LONG + "\n\n**(C)**.", "C"),
        ("$527.89 million (or approximately $528 million, as said above)", "$527.89 million"),
        (LONG + "\n**42 units**", "42 units"),
        ("", ""),
    ],
)
def test_an_answer_is_shortened_as_in_the_suite(text: str, answer: str) -> None:
    assert shorten_answer(text, "E") == answer


@pytest.mark.parametrize(
    ("by", "text", "answer"),
    [
        ("none", "<think>x</think>B", "<think>x</think>B"),
        ("strip_thinking_mmmu", "<think>Answer: A</think>\n**Answer: B**", "B"),
        ("strip_thinking_mmmu", "Answer: C <think>no, Answer: D", "C"),
        ("kimi_k3_mmmu", "Answer: A<|close|>think<|sep|><|open|>response<|sep|>C<|close|>", "C"),
        ("kimi_k3_mmmu", "<|open|>response<|sep|>B<|close|>response<|sep|>x(D)", "B"),
        ("kimi_k3_mmmu", "<|open|>response<|sep|> <|end|> <|close|>message B", "message B"),
        ("kimi_k3_mmmu", "<think>x</think>Answer: E", "E"),
    ],
)
def test_the_post_processors_of_the_suite(by: str, text: str, answer: str) -> None:
    told = apply_post_process(text, by)  # type: ignore[arg-type]
    assert told.endswith(answer) if by == "kimi_k3_mmmu" else told == answer


def test_letters_go_up_to_the_last_option() -> None:
    assert shorten_answer("Answer: H", "E") == "Answer: H"
    assert shorten_answer("Answer: H", "J") == "H"


@pytest.mark.parametrize(
    "piece", [" ", "answer ", "Answer: ", "\\boxed{", "(or ", "(", "*", "**", "<|open|>", "A "]
)
def test_long_answers_are_read_in_time_that_grows_with_their_length(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    began = time.process_time()
    for by in ("strip_thinking_mmmu", "kimi_k3_mmmu"):
        choice(apply_post_process(text, by), "A", OPTIONS)  # type: ignore[arg-type]
    assert time.process_time() - began < 5.0
