"""Test the scorers of chosen letters, numbers and boxed answers."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.schema import Outcome
from serve_eval.scorers.boxed import extract, integer_answer
from serve_eval.scorers.choice import answer_letter, prefix_match, score_stated_letter
from serve_eval.scorers.numeric import extract_flexible, extract_strict, normalise


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
def test_the_first_letter_decides(text, target, value, outcome, answer):
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
    text, outcome, answer, last
):
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
def test_the_stated_letter_or_else_any_that_stands_alone(text, outcome, answer, phrase):
    score = score_stated_letter(text, "C")
    assert (score.outcome, score.answer, score.parts["phrase"]) == (outcome, answer, phrase)


def test_recorded_letters_of_two_models_score_as_their_letter_says(shared):
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
def test_what_each_filter_takes(text, strict, flexible):
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
def test_the_form_in_which_numbers_are_compared(text, normalised):
    assert normalise(text) == normalised


NUMBERS = st.text(alphabet="0123456789.,$-# \nab", max_size=30)


@given(st.lists(NUMBERS, max_size=12), st.sampled_from([0, 150, 190, 198, 199, 200, 201, 400]))
def test_both_are_what_the_patterns_of_the_task_say(parts, gap):
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
def test_recorded_answers_score_as_lm_eval_scored_them(shared, name):
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
        for read, key in ((extract_strict, "strict"), (extract_flexible, "flexible")):
            answer = read(row["output"])
            assert (answer is not None and normalise(answer) == gold) == row[key], row["idx"]


@given(st.text(alphabet="0123456789-$.,# \nAb١²", max_size=30))
def test_a_number_in_digits_is_its_own_normal_form(text):
    plain = re.sub(r"(?s).*#### ", "", re.sub(r"[,$]", "", text))
    assert normalise(text) == re.sub(r"\.(\n?)\Z", r"\1", plain).lower()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (r"so \boxed{70}.", "70"),
        (r"\boxed{1} then \boxed{70}", "70"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{70", r"\boxed{70"),
        (r"$x=70$", "x=70"),
        (r"$1 and 70$", "1 and 70"),
        (r"\boxed 70$ is it", "70"),
        ("70", "70"),
        ("", ""),
    ],
)
def test_the_place_of_the_answer(text, place):
    assert extract(text) == place


@pytest.mark.parametrize(
    ("text", "outcome", "string", "integer"),
    [
        (r"\boxed{70}", Outcome.CORRECT, 1, 1),
        (r"\boxed{ 70 ^\circ}", Outcome.CORRECT, 1, 1),
        (r"$n = 70$", Outcome.CORRECT, 1, 1),
        (r"\boxed{070}", Outcome.WRONG, 0, 1),
        (r"\boxed{\\!70}", Outcome.WRONG, 0, 1),
        (r"\boxed{..=70}", Outcome.WRONG, 0, 1),
        (" .=70", Outcome.WRONG, 0, 1),
        (r"\boxed{-70}", Outcome.WRONG, 0, 0),
        ("The answer is 70", Outcome.WRONG, 0, 1),
        ("70", Outcome.CORRECT, 1, 1),
        (r"\boxed{9}" + "1" * 5000, Outcome.WRONG, 0, 0),
        ("1" * 5000, Outcome.WRONG, 0, 0),
        ("no idea", Outcome.UNPARSED, 0, 0),
    ],
)
def test_text_and_number_stand_side_by_side(text, outcome, string, integer):
    score = integer_answer(text, "70")
    assert (score.outcome, score.value) == (outcome, string)
    assert score.parts == {"string": string, "integer": integer}


def test_a_target_with_leading_zeros_is_the_same_number():
    assert integer_answer(r"\boxed{33}", "033").parts["integer"] == 1.0
