"""Test the scorers of chosen letters, numbers, boxed answers and formulas."""

import json
import re
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.plugins import registry
from serve_eval.schema import Outcome, Response
from serve_eval.scorers.boxed import extract, integer_answer
from serve_eval.scorers.choice import answer_letter, prefix_match, score_stated_letter
from serve_eval.scorers.math import TIMED_OUT, score_formula, scorer, write_answer
from serve_eval.scorers.numeric import extract_flexible, extract_strict, normalise

NEEDS_MATH = pytest.mark.skipif(find_spec("math_verify") is None, reason="needs the extra math")


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


PAIRS = [
    ("So it is $\\boxed{0.5}$.", "\\frac{1}{2}", True),
    ("The final answer is $\\frac{2}{4}$.", "1/2", True),
    ("It is 1/3.", "\\frac{1}{2}", False),
    ("$(x-1)(x+1)$", "x^2-1", True),
    ("$(x-1)(x+2)$", "x^2-1", False),
    ("\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}", "(3, \\pi/2)", True),
    ("\\boxed{(\\frac{\\pi}{2}, 3)}", "(3, \\frac{\\pi}{2})", False),
    ("so \\boxed{1} but then \\boxed{2}", "2", True),
    ("It is $2\\sqrt{3}$", "\\sqrt{12}", True),
    ("\\boxed{\\text{Evelyn}}", "\\text{Evelyn}", True),
    ("\\boxed{\\text{(B)}}", "\\text{(C)}", False),
    ("\\boxed{11,\\! 111}", "11111", True),
    ("$\\boxed{x \\in [-2, 7]}$", "[-2, 7]", True),
    ("\\boxed{[-2, 7)}", "[-2, 7]", False),
    ("\\boxed{\\{1, 2\\}}", "\\{2, 1\\}", True),
    (
        "\\boxed{\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}}",
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        True,
    ),
    ("So he pays \\boxed{\\$18.90}.", "\\$18.90", True),
    ("\\boxed{6 - 5i}", "6-5i", True),
    ("\\boxed{90^\\circ}", "90", True),
    ("I do not know.", "0", False),
]
"""An answer, the expected formula, and whether they are equal."""


@NEEDS_MATH
@pytest.mark.parametrize(("text", "target", "equal"), PAIRS)
def test_equal_formulas_have_the_point(text, target, equal):
    score = score_formula(text, target)
    assert score.value == float(equal), score
    assert score.parts == {TIMED_OUT: 0.0}


@NEEDS_MATH
@pytest.mark.parametrize(("text", "target", "equal"), PAIRS)
def test_the_result_is_that_of_the_library(text, target, equal):
    from math_verify import ExprExtractionConfig, LatexExtractionConfig
    from math_verify.metric import math_metric

    both = (ExprExtractionConfig(), LatexExtractionConfig())
    value, _ = math_metric((LatexExtractionConfig(),), both)([f"${target}$"], [text])
    assert score_formula(text, target).value == value == float(equal)


@NEEDS_MATH
def test_the_answer_is_what_was_extracted():
    score = score_formula("So $x = 3$, or \\boxed{\\frac{2}{4}}.", "0.5")
    assert (score.answer, score.outcome) == ("\\frac{2}{4}", Outcome.CORRECT)
    silent = score_formula("I do not know.", "0.5")
    assert (silent.answer, silent.outcome, silent.mode) == (None, Outcome.UNPARSED, None)
    assert score_formula("It is 2.", "3").mode == "another value"


@NEEDS_MATH
def test_precision_is_that_of_the_option():
    assert score_formula("It is 0.3333", "\\frac{1}{3}").value == 0.0
    assert score_formula("It is 0.3333", "\\frac{1}{3}", precision=3).value == 1.0


HOSTILE = [
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{((10^{10})!)!}",
    "\\boxed{" + "(" * 3000 + "1" + ")" * 3000 + "}",
    "\\boxed{\\binom{10^{12}}{10^{11}}}",
    "\\boxed{\\int_0^1 x^{x^{x^{x^x}}} \\sin(e^{x^9}) dx}",
    "$" * 20_000,
    "\\boxed{" * 5_000,
    "the final answer is " * 5_000,
    "1," * 30_000,
    "\\frac{" * 3_000,
]


# An alarm within a callback of the garbage collector is lost there, and comes again.
@NEEDS_MATH
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_answer_ends_at_the_limit(text):
    began = time.monotonic()
    score = score_formula(text, "x^2 + 1", time_limit_s=0.5)
    assert time.monotonic() - began < 8.0
    assert score.value == 0.0
    assert score.mode == (TIMED_OUT if score.parts[TIMED_OUT] else score.mode)


@NEEDS_MATH
def test_a_tower_of_powers_is_late_and_the_next_answer_is_not():
    score = score_formula("\\boxed{9^{9^{9^{9}}}}", "x^2 + 1", time_limit_s=0.5)
    assert (score.mode, score.parts, score.value) == (TIMED_OUT, {TIMED_OUT: 1.0}, 0.0)
    assert score_formula("\\boxed{x}", "x", time_limit_s=0.5).value == 1.0


@NEEDS_MATH
def test_the_same_text_is_right_however_long_a_comparison_takes():
    tower = "2^{2^{2^{2^{2}}}} + x"
    assert score_formula(write_answer(tower), tower).value == 1.0


@NEEDS_MATH
def test_it_scores_outside_of_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(score_formula("It is 0.5", "1/2")))
    thread.start()
    thread.join()
    assert found[0].value == 1.0


@NEEDS_MATH
def test_options_and_expectations_are_checked():
    for options in ({"precision": -1}, {"time_limit_s": 0.0}):
        with pytest.raises(PlanError, match="precision must be 0 or more"):
            scorer(**options)
    [told] = registry.load(registry.SCORERS, "math")().problems("$$")
    assert told.startswith("expected must be a formula or a text that math-verify reads")
    right = Response(text="$\\frac{2}{4}$", finish_reason="stop")
    assert scorer().score({"answer": "0.5"}, right).value == 1.0


SHARED = Path(__file__).resolve().parents[2].parent / "shared/data/math_500/test.jsonl"


@NEEDS_MATH
@pytest.mark.skipif(not SHARED.is_file(), reason="needs MATH-500 in ../shared/data")
def test_the_published_solutions_are_right():
    rows = [json.loads(line) for line in SHARED.read_text("utf-8").splitlines()]
    assert [row for row in rows if not score_formula(row["solution"], row["answer"]).value] == []
