"""Test LongBench's scorers with golden values from the published metrics themselves.

tests/scorers/test_lm_eval.py compares random texts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.schema import Outcome
from serve_eval.scorers import longbench


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
