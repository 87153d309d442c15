from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    [
        ("He has 7.\n#### 1,234", "1234"),
        ("$18", "18"),
        ("5.", "5"),
        ("ABC", "abc"),
        ("3.50", "3.50"),
    ],
)
def test_the_form_in_which_numbers_are_compared(text: str, normalised: str) -> None:
    assert normalise(text) == normalised


NUMBERS = st.text(alphabet="0123456789.,$-# \nab", max_size=30)


@given(st.lists(NUMBERS, max_size=12), st.sampled_from([0, 150, 190, 198, 199, 200, 201, 400]))
def test_both_are_what_the_patterns_of_the_task_say(parts: list[str], gap: int) -> None:
    text = (" " * gap).join(parts)
    found = re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", text)
    assert extract_flexible(text) == ((found[-1][0] or found[-1][1]) if found else None)
    compared = text
    for ignored in (r",", r"\$", r"(?s).*#### ", r"\.$"):
        compared = re.sub(ignored, "", compared)
    assert normalise(text) == compared.lower()


@pytest.mark.parametrize(
    "name",
    [
        "gsm8k_Llama-3.1-405B-Instruct-Turbo",
        "gsm8k_Meta-Llama-3.1-405B-Instruct_at_hyperbolic",
        "gsm8k_Meta-Llama-3.1-8B-Instruct",
    ],
)
def test_recorded_answers_score_as_lm_eval_scored_them(shared: Path, name: str) -> None:
    golds = [
        json.loads(line)["answer"]
        for line in (shared / "data/gsm8k/test.jsonl").read_text().splitlines()
    ]
    rows = [
        json.loads(line)
        for line in (shared / f"data/recorded/{name}.jsonl").read_text().splitlines()
    ]
    assert len(rows) == 1319
    for row in rows:
        gold = normalise(golds[row["idx"]])
        for extract, key in ((extract_strict, "strict"), (extract_flexible, "flexible")):
            answer = extract(row["output"])
            assert (answer is not None and normalise(answer) == gold) == row[key], row["idx"]


@given(st.text(alphabet="0123456789-$.,# \nAb١²", max_size=30))
def test_a_number_in_digits_is_its_own_normal_form(text: str) -> None:
    plain = re.sub(r"(?s).*#### ", "", re.sub(r"[,$]", "", text))
    assert normalise(text) == re.sub(r"\.(\n?)\Z", r"\1", plain).lower()
