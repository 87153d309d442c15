from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.schema import Outcome
from serve_eval.scorers.choice import answer_letter, prefix_match, score_stated_letter


@pytest.mark.parametrize(
    ("text", "target", "value", "outcome", "answer"),
    [
        (" B", "B", 1.0, Outcome.CORRECT, "B"),
        ("B.", "B", 1.0, Outcome.CORRECT, "B"),
        ("\n\nB", "B", 1.0, Outcome.CORRECT, "B"),
        ("Because", "B", 1.0, Outcome.CORRECT, "B"),
        (" C", "B", 0.0, Outcome.WRONG, "C"),
        ("b", "B", 0.0, Outcome.WRONG, "b"),
        ("The answer", "B", 0.0, Outcome.UNPARSED, None),
        ("(B)", "B", 0.0, Outcome.UNPARSED, None),
        ("42", "B", 0.0, Outcome.UNPARSED, None),
    ],
)
def test_the_first_letter_decides(
    text: str, target: str, value: float, outcome: Outcome, answer: str | None
) -> None:
    score = prefix_match(text, target)
    assert (score.value, score.outcome, score.answer) == (value, outcome, answer)


@pytest.mark.parametrize(
    ("text", "outcome", "answer", "last"),
    [
        ("... Answer: B", Outcome.CORRECT, "B", 1),
        ("answer :\tb", Outcome.CORRECT, "B", 1),
        ("Answer: A? No.\nAnswer: B", Outcome.WRONG, "A", 1),
        ("**Answer**: B", Outcome.UNPARSED, None, 1),
        ("**Answer: B**", Outcome.CORRECT, "B", 1),
        ("Answer: $B$", Outcome.UNPARSED, None, 0),
        ("Answer: \\boxed{B}", Outcome.UNPARSED, None, 1),
        ("Answer: (B)", Outcome.UNPARSED, None, 1),
        ("Answer: Because", Outcome.CORRECT, "B", 0),
        ("The letter is B", Outcome.UNPARSED, None, 0),
    ],
)
def test_the_first_answer_line_decides_and_the_last_one_stands_beside_it(
    text: str, outcome: Outcome, answer: str | None, last: float
) -> None:
    score = answer_letter(text, "B")
    assert (score.outcome, score.answer) == (outcome, answer)
    assert score.parts == {"first_answer": float(outcome is Outcome.CORRECT), "last_answer": last}


@pytest.mark.parametrize(
    ("text", "outcome", "answer", "phrase"),
    [
        ("The correct answer is (C).", Outcome.CORRECT, "C", 1),
        ("The correct answer is C", Outcome.CORRECT, "C", 1),
        ("**The correct answer is (C)**", Outcome.CORRECT, "C", 1),
        (
            "<think>The correct answer is (A)</think> The correct answer is (C)",
            Outcome.CORRECT,
            "C",
            1,
        ),
        ("A good question: it is C", Outcome.WRONG, "A", 0),
        ("I choose C", Outcome.CORRECT, "C", 0),
        ("The correct answer is Case", Outcome.CORRECT, "C", 1),
        ("it is c", Outcome.UNPARSED, None, 0),
    ],
)
def test_the_stated_letter_or_else_any_that_stands_alone(
    text: str, outcome: Outcome, answer: str | None, phrase: float
) -> None:
    score = score_stated_letter(text, "C")
    assert (score.outcome, score.answer, score.parts["phrase"]) == (outcome, answer, phrase)


def test_recorded_letters_of_two_models_score_as_their_letter_says(shared: Path) -> None:
    rows = [
        json.loads(line)
        for line in (shared / "data/recorded/mmlu_helm.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 14015
    for row in rows:
        for text in row["raw"].values():
            score = prefix_match(text, row["gold"])
            assert score.value == float(text.strip()[:1] == row["gold"]), row
            assert score.outcome is not Outcome.PARTIAL
