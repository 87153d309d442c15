"""Test the scorers of long contexts and of likelihood.

tests/scorers/test_lm_eval.py compares random texts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.schema import Outcome
from serve_eval.scorers import longbench
from serve_eval.scorers.likelihood import TIED, likeliest
from serve_eval.scorers.passkey import first_digits


@pytest.mark.parametrize(
    ("metric", "text", "answer", "value"),
    [
        (longbench.qa_f1, "The Cat, sat!", "a cat sat", 1.0),
        (longbench.qa_f1, "cat cat dog", "cat dog dog", 2 / 3),
        (longbench.qa_f1, "", "cat", 0.0),
        (longbench.qa_f1, "the", "the", 0.0),
        (longbench.rouge_l, "the cat sat. on the mat", "on the mat. the cat sat", 1.0),
        (longbench.rouge_l, "a b c d", "a c x", 4 / 7),
        (longbench.rouge_l, "a a a a", "a", 1.0),
        (longbench.rouge_l, "", "a", 0.0),
        (longbench.rouge_l, "...", "a", 0.0),
        (longbench.count, "5", "5", 1.0),
        (longbench.count, "There are 5 of 10.", "5", 0.5),
        (longbench.count, "55", "5", 0.0),
        (longbench.count, "five", "5", 0.0),
        (longbench.retrieval, "Paragraph 12", "Paragraph 12", 1.0),
        (longbench.retrieval, "Paragraphs 12, 3 and 4", "Paragraph 3", 1 / 3),
        (longbench.retrieval, "Paragraph 12", "none", 0.0),
        (longbench.retrieval_zh, "段落7", "段落7", 1.0),
        (longbench.code_similarity, "# next\n\n    return x + 1\n    y", "    return x + 1", 1.0),
        (longbench.code_similarity, "```\n// c\n", "return", 0.0),
        (longbench.code_similarity, "kitten", "sitting", 8 / 13),
        (longbench.code_similarity, "", "", 1.0),
    ],
)
def test_what_each_metric_gives(
    metric: Callable[[str, str], float], text: str, answer: str, value: float
) -> None:
    assert metric(text, answer) == pytest.approx(value)


def test_chinese_words_are_those_that_jieba_finds() -> None:
    pytest.importorskip("jieba", reason="needs the optional extra longbench")
    assert longbench.cut("我来到北京清华大学") == ["我", "来到", "北京", "清华大学"]
    assert longbench.qa_f1_zh("北京，清华大学。", "清华大学") == pytest.approx(2 / 3)
    assert longbench.rouge_l_zh("我来到北京", "我来到北京") == 1.0


@pytest.mark.parametrize(
    ("text", "answer", "value"),
    [
        ("Food", "Food", 1.0),
        ("Food or Color", "Food", 0.5),
        ("a Foodie", "Foodie", 1.0),  # "Food" is named too, and dropped as a part of the right one
        ("nothing", "Food", 0.0),
        ("Foodie", "Food", 0.5),  # the longer class is not a part of the right one
    ],
)
def test_a_class_is_shared_with_the_others_that_are_named(
    text: str, answer: str, value: float
) -> None:
    assert longbench.classification(["Food", "Foodie", "Color"])(text, answer) == value


def test_a_class_after_a_dropped_one_is_kept_as_in_the_published_metric() -> None:
    assert longbench.classification(["a", "ab", "abc"])("abc", "abc") == 0.5


def test_the_best_answer_counts_and_only_code_keeps_its_outer_white_space() -> None:
    score = longbench.best(longbench.qa_f1, " blue ", ["red", "blue"])
    assert (score.value, score.outcome, score.answer) == (1.0, Outcome.CORRECT, "blue")
    assert longbench.best(longbench.qa_f1, "blue car", ["blue"]).outcome is Outcome.PARTIAL
    assert longbench.best(longbench.code_similarity, "    x", ["    x"]).answer == "    x"


@given(st.text(alphabet="abc. \n", max_size=40), st.text(alphabet="abc. \n", max_size=40))
def test_similarities_lie_between_0_and_1_and_a_text_is_like_itself(text: str, other: str) -> None:
    for metric in (longbench.rouge_l, longbench.code_similarity, longbench.qa_f1):
        assert 0.0 <= metric(text, other) <= 1.0
    line = other.replace("\n", "")
    assert (
        longbench.code_similarity(line if line.strip() else "", line if line.strip() else "") == 1.0
    )
    if other.replace(".", "").strip():
        assert longbench.rouge_l(other, other) == 1.0


@pytest.mark.parametrize(
    ("told", "answer", "tied"),
    [
        ([[-1.0], [-2.0], [-3.0], [-4.0]], "A", False),
        ([[-4.0], [-3.0], [-2.5], [-2.75]], "C", False),
        (
            [[-0.5, -0.5], [-0.9], [-2.0], [-3.0]],
            "B",
            False,
        ),  # the sum counts, not the mean per token
        ([[-2.0], [-1.0], [-1.0], [-3.0]], "B", True),
        ([[-2.0], [-0.25, -0.75], [-3.0], [-1.0]], "B", True),
        ([[-1.0], [-2.0], [-2.0], [-2.0]], "A", False),  # a tie below the greatest decides nothing
    ],
)
@pytest.mark.parametrize("target", "ABCD")
def test_the_greatest_sum_counts_and_of_several_the_first(
    told: list[list[float]], answer: str, tied: bool, target: str
) -> None:
    score = likeliest(told, "ABCD", target)
    assert (score.answer, score.parts) == (answer, {TIED: float(tied)})
    assert (score.value, score.outcome is Outcome.CORRECT) == (
        float(answer == target),
        answer == target,
    )


@given(st.lists(st.floats(-50, 0), min_size=4, max_size=4), st.floats(-20, 0))
def test_what_all_choices_share_decides_nothing(values: list[float], shared: float) -> None:
    ordered = sorted(values)
    if ordered[3] - ordered[2] < 1e-6:
        return
    alone, after = (likeliest([[*more, v] for v in values], "ABCD", "A") for more in ([], [shared]))
    assert alone.answer == after.answer


@pytest.mark.parametrize(
    ("text", "outcome", "contained"),
    [
        (" 01868", Outcome.CORRECT, 1),
        (" 01868. The", Outcome.CORRECT, 1),
        ("key 1: 01868", Outcome.WRONG, 1),
        (" 018689", Outcome.WRONG, 0),
        (" 1868", Outcome.WRONG, 0),
        (" lost", Outcome.UNPARSED, 0),
    ],
)
def test_the_first_run_of_digits_decides(text: str, outcome: Outcome, contained: float) -> None:
    score = first_digits(text, "01868")
    assert score.outcome is outcome
    assert score.parts == {
        "first_digits": float(outcome is Outcome.CORRECT),
        "contained": contained,
    }
