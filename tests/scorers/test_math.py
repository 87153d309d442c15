"""Test the scorer of formulas with answers that are equal or not."""

import json
import threading
import time
from pathlib import Path

import pytest

from serve_eval.errors import PlanError
from serve_eval.plugins import registry
from serve_eval.schema import Outcome, Response
from serve_eval.scorers.math import TIMED_OUT, score_formula, scorer, write_answer

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


pytest.importorskip("math_verify", reason="needs the optional extra math")


@pytest.mark.parametrize(("text", "target", "equal"), PAIRS)
def test_equal_formulas_have_the_point(text, target, equal):
    score = score_formula(text, target)
    assert score.value == float(equal), score
    assert score.parts == {TIMED_OUT: 0.0}


@pytest.mark.parametrize(("text", "target", "equal"), PAIRS)
def test_the_result_is_that_of_the_library(text, target, equal):
    from math_verify import ExprExtractionConfig, LatexExtractionConfig
    from math_verify.metric import math_metric

    both = (ExprExtractionConfig(), LatexExtractionConfig())
    value, _ = math_metric((LatexExtractionConfig(),), both)([f"${target}$"], [text])
    assert score_formula(text, target).value == value == float(equal)


def test_the_answer_is_what_was_extracted():
    score = score_formula("So $x = 3$, or \\boxed{\\frac{2}{4}}.", "0.5")
    assert (score.answer, score.outcome) == ("\\frac{2}{4}", Outcome.CORRECT)
    silent = score_formula("I do not know.", "0.5")
    assert (silent.answer, silent.outcome, silent.mode) == (None, Outcome.UNPARSED, None)
    assert score_formula("It is 2.", "3").mode == "another value"


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
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_answer_ends_at_the_limit(text):
    began = time.monotonic()
    score = score_formula(text, "x^2 + 1", time_limit_s=0.5)
    assert time.monotonic() - began < 8.0
    assert score.value == 0.0
    assert score.mode == (TIMED_OUT if score.parts[TIMED_OUT] else score.mode)


def test_a_tower_of_powers_is_late_and_the_next_answer_is_not():
    score = score_formula("\\boxed{9^{9^{9^{9}}}}", "x^2 + 1", time_limit_s=0.5)
    assert (score.mode, score.parts, score.value) == (TIMED_OUT, {TIMED_OUT: 1.0}, 0.0)
    assert score_formula("\\boxed{x}", "x", time_limit_s=0.5).value == 1.0


def test_the_same_text_is_right_however_long_a_comparison_takes():
    tower = "2^{2^{2^{2^{2}}}} + x"
    assert score_formula(write_answer(tower), tower).value == 1.0


def test_it_scores_outside_of_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(score_formula("It is 0.5", "1/2")))
    thread.start()
    thread.join()
    assert found[0].value == 1.0


def test_options_and_expectations_are_checked():
    for options in ({"precision": -1}, {"time_limit_s": 0.0}):
        with pytest.raises(PlanError, match="precision must be 0 or more"):
            scorer(**options)
    [told] = registry.load(registry.SCORERS, "math")().problems("$$")
    assert told.startswith("expected must be a formula or a text that math-verify reads")
    right = Response(text="$\\frac{2}{4}$", finish_reason="stop")
    assert scorer().score({"answer": "0.5"}, right).value == 1.0


SHARED = Path(__file__).resolve().parents[2].parent / "shared/data/math_500/test.jsonl"


@pytest.mark.skipif(not SHARED.is_file(), reason="needs MATH-500 in ../shared/data")
def test_the_published_solutions_are_right():
    rows = [json.loads(line) for line in SHARED.read_text("utf-8").splitlines()]
    assert [row for row in rows if not score_formula(row["solution"], row["answer"]).value] == []
