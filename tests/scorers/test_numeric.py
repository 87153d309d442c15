from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.scorers.numeric import extract_flexible, extract_strict, normalise


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("so 3 + 4 = 7\n#### 7", "7", "7"),
        ("#### 7\nQ2 ... #### 9", "7", "9"),
        ("#### -12", "-12", "-12"),
        ("#### 1,234.", "1,234.", "1,234."),
        ("#### $18", None, "$18"),
        ("####7 and 8", None, "8"),
        ("the answer is 3.5", None, "3.5"),
        ("it costs $2,500.00 in all.", None, "$2,500.00"),
        ("no number here", None, None),
        ("", None, None),
        ("well...", None, "..."),
        ("It is 5.", None, "5."),
        ("-3 or - 4", None, "4"),
    ],
)
def test_what_each_filter_takes(text: str, strict: str | None, flexible: str | None) -> None:
    assert extract_strict(text) == strict
    assert extract_flexible(text) == flexible


@pytest.mark.parametrize(
    ("text", "normalised"),
    [("He has 7.\n#### 1,234", "1234"), ("$18", "18"), ("5.", "5"), ("ABC", "abc"), ("3.50", "3.50")],
)
def test_the_form_in_which_numbers_are_compared(text: str, normalised: str) -> None:
    assert normalise(text) == normalised


@pytest.mark.parametrize(
    "name",
    [
        "gsm8k_Llama-3.1-405B-Instruct-Turbo",
        "gsm8k_Meta-Llama-3.1-405B-Instruct_at_hyperbolic",
        "gsm8k_Meta-Llama-3.1-8B-Instruct",
    ],
)
def test_recorded_answers_score_as_lm_eval_scored_them(shared: Path, name: str) -> None:
    golds = [json.loads(line)["answer"] for line in (shared / "data/gsm8k/test.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (shared / f"data/recorded/{name}.jsonl").read_text().splitlines()]
    assert len(rows) == 1319
    for row in rows:
        gold = normalise(golds[row["idx"]])
        for extract, key in ((extract_strict, "strict"), (extract_flexible, "flexible")):
            answer = extract(row["output"])
            assert (answer is not None and normalise(answer) == gold) == row[key], row["idx"]
