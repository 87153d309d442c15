"""Compare our reading of MMMU's answers with lm-eval's, on made-up questions and answers.

If lm-eval cannot read an answer, it guesses a letter at random; ours scores it as wrong. These
answers are counted separately.
"""

from __future__ import annotations

import importlib
import random
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

from serve_eval.schema import Outcome
from serve_eval.scorers import _mmmu
from tests.oracle.part import Compared, require

QUESTIONS = 600
"""Number of questions with options, and of those without."""
ANSWERS = 100
"""Number of answers to each question."""
LETTERS = "ABCDEFGHI"
WORDS = (
    "Paris", "the cell", "a", "A", "B", "I", "5", "5.0", "1,000", "1000", "12.345", "-3", "1e3", "2.5e-4", "$6", "50%",  # noqa: E501
    "x=2", "y = -1.5", "red cat", "Red", "cat", "Yes", "No", "3/4", ".5", "é", "24/7", "<image 1>", "None of the above",  # noqa: E501
)  # fmt: skip
"""Options and answers."""
PIECES = (
    "(A)", "(B)", "(C)", "(D)", "(I)", "A", "B", "C", "D", "E", "I", " A ", "A.", "B,", "(a)", "answer", "Answer: ",  # noqa: E501
    "answer is ", "is ", "so ", "thus ", "therefore ", "could be ", "final ", "result ", "=", " = ", "\n", "\n\n", ".",  # noqa: E501
    ",", "!", "?", ";", ":", "'", "''.", " ", "the", "option", "because it", "12", "1,234", "1,23", "3.5", "-7", "-.5",  # noqa: E501
    "1e5", "2E+3", "12.", "1234567", "1.2.3", "--4", "5e", "\u0663", "\u00bd", "\u2212 3", "Is ", "SO ", "\t", "\x85",  # noqa: E501
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """The right answer, or several right ones, and the options if the question has any."""

    answer: str | list[str]
    options: tuple[str, ...] = ()


def compare():
    """Compare letters, and answers in words and numbers.

    Raises Skipped without lm-eval.
    """
    require("lm_eval")
    kept = random.getstate()
    try:  # lm-eval's file seeds the global generator
        theirs = importlib.import_module("lm_eval.tasks.mmmu.utils")
    finally:
        random.setstate(kept)
    with _guesses_told(theirs) as guessed:
        return [*_letters(theirs, guessed), _open_answers(theirs)]


@contextmanager
def _guesses_told(theirs):
    """Yield the list to which every random guess adds a letter."""
    original, guessed = theirs.random, []

    def choice(letters):
        guessed.append(letters[0])
        return letters[0]

    theirs.random = SimpleNamespace(choice=choice)
    try:
        yield guessed
    finally:
        theirs.random = original


def _letters(theirs, guessed):
    rng, right = random.Random("mmmu letters"), 0
    compared = Compared(what="letters of mmmu, and whether they are right, against lm-eval")
    guesses = Compared(
        what="answers of mmmu where lm-eval guesses at random: unparsed and wrong here"
    )
    for number in range(QUESTIONS):
        options = tuple(rng.choice(WORDS) for _ in range(rng.randint(1, 9)))
        question = Question(answer=rng.choice(LETTERS[: len(options)]), options=options)
        row = {
            "question_type": "multiple-choice",
            "options": repr(list(options)),
            "answer": question.answer,
        }
        index = dict(zip(LETTERS, options, strict=False))
        for text in _answers(question, rng):
            guessed.clear()
            wanted = theirs.parse_multi_choice_response(text, list(index), index)
            score = _mmmu.score_choice(text, str(question.answer), options)
            if guessed:
                guesses.add(
                    f"{number} {options} {text!r}",
                    (score.outcome, score.value),
                    (Outcome.UNPARSED, 0.0),
                )
            else:
                value = theirs.process_results(row, [text])["acc"]
                right += int(value)
                compared.add(
                    f"{number} {options} {text!r}", (score.answer, score.value), (wanted, value)
                )
    compared.notes.append(f"{right} right")
    return compared, guesses


def _open_answers(theirs):
    rng, right, lists, by_list = random.Random("mmmu open"), 0, 0, 0
    compared = Compared(
        what="open answers of mmmu against lm-eval's parse_open_response and eval_open"
    )
    for number in range(QUESTIONS):
        several = rng.random() < 0.2
        question = Question(
            answer=rng.sample(WORDS, rng.randint(2, 3)) if several else rng.choice(WORDS)
        )
        for text in _answers(question, rng):
            wanted = float(theirs.eval_open(question.answer, theirs.parse_open_response(text)))
            accepted = question.answer if isinstance(question.answer, list) else [question.answer]
            score = _mmmu.score_short_answer(text, accepted)
            right += int(wanted)
            compared.add(f"{number} {question.answer!r} {text!r}", score.value, wanted)
            if several:
                lists += 1
                row = {"question_type": "open", "answer": repr(question.answer)}
                by_list += score.value != theirs.process_results(row, [text])["acc"]
    compared.notes.append(f"{right} right")
    compared.notes.append(
        f"{lists} are of questions with several answers, held against each of them; lm-eval's"
        f" process_results takes the list as one text, and says something else of {by_list}"
    )
    return compared


def _answers(question, rng):
    """Yield answers of random pieces.

    The right answer and the words of the options are often among them.
    """
    right = [question.answer] if isinstance(question.answer, str) else question.answer
    said = [*right, *(f"({one})" for one in right), *question.options, *rng.sample(WORDS, 4)]
    for _ in range(ANSWERS):
        drawn = (
            rng.choice(said if rng.random() < 0.4 else PIECES) for _ in range(rng.randint(0, 10))
        )
        yield rng.choice(("", " ")).join(drawn)
