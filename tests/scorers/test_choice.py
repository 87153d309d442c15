from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.schema import Outcome
from serve_eval.scorers.choice import prefix_match


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
def test_the_first_letter_decides(text: str, target: str, value: float, outcome: Outcome, answer: str | None) -> None:
    score = prefix_match(text, target)
    assert (score.value, score.outcome, score.answer) == (value, outcome, answer)


def test_recorded_letters_of_two_models_score_as_their_letter_says(shared: Path) -> None:
    rows = [json.loads(line) for line in (shared / "data/recorded/mmlu_helm.jsonl").read_text().splitlines()]
    assert len(rows) == 14015
    for row in rows:
        for text in row["raw"].values():
            score = prefix_match(text, row["gold"])
            assert score.value == float(text.strip()[:1] == row["gold"]), row
            assert score.outcome is not Outcome.PARTIAL
