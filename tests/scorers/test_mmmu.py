"""Test the scorers of answers about media and long contexts.

tests/harness/test_agrees.py compares random texts.
"""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.schema import Outcome
from serve_eval.scorers import _mmmu, longbench
from serve_eval.scorers._mmmu import (
    STATED,
    apply_post_process,
    find_given_letter,
    find_letter,
    find_section,
    score_choice,
    score_short_answer,
    shorten_answer,
)
from serve_eval.scorers._mmmu import score_pro_choice as mmmu_pro_choice
from serve_eval.scorers.likelihood import TIED, likeliest
from serve_eval.tasks._mixed_modality import score_about
from serve_eval.tasks._passkey import first_digits

OPTIONS = ["a red cat", "blue", "$12$", "none of them"]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("B.", "B"),
        ("(C)", "C"),
        ("(A) or rather (B)", "B"),
        ("(A), though D is near", "A"),
        ("A is wrong, B is right", "B"),
        ("It is clearly blue, and not A Red Cat at all", "A"),
        ("blue", None),
        ("B\n", None),
        ("", None),
        ("E", None),
    ],
)
def test_the_letter_that_is_given(text, letter):
    assert find_given_letter(text, OPTIONS) == letter


def test_nothing_is_guessed():
    assert score_choice("I cannot see it", "A", OPTIONS).outcome is Outcome.UNPARSED
    assert score_choice("(B)", "A", OPTIONS).outcome is Outcome.WRONG
    assert score_choice("(A)", "A", OPTIONS).value == 1.0


def test_the_stated_letter_stands_beside_it():
    score = score_choice("**Answer:** B\nso not (A)", "B", OPTIONS)
    assert (score.value, score.answer, score.parts) == (0.0, "A", {STATED: 1.0})
    assert score_choice("B", "B", OPTIONS).parts == {STATED: 1.0}


@pytest.mark.parametrize(
    ("text", "accepted", "right"),
    [
        ("12", ["12"], True),
        ("The total is 1,200.004", ["1200"], True),
        ("x = 3.456", ["3.46"], True),
        ("x = 4\nso 3", ["4"], False),
        ("so 3\nx = 4", ["4"], True),
        ("Therefore the answer is 6e3.", ["6000"], True),
        ("Phototropism", ["phototropism"], True),
        ("It is phototropism in plants", ["Phototropism"], True),
        ("112", ["12"], False),
        ("ax", ["X"], False),
        ("ax y", ["X"], True),
        ("x y", ["X"], True),
        ("7", ["8", "7"], True),
        ("", ["7"], False),
    ],
)
def test_short_answers(text, accepted, right):
    assert (score_short_answer(text, accepted).value == 1.0) == right


PLAINER = (
    re.compile(r"-?\d+(?:\.\d+)?e[+-]?\d+"),
    re.compile(r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?!e[+-]?\d+)(?![,\d])"),
)
"""The original's patterns, which retry from every digit of a long run."""


@given(
    st.lists(st.sampled_from(["-", "1", "23", ".", "e", "+", ",", "x", " "]), max_size=14).map(
        "".join
    )
)
def test_the_numbers_are_those_of_the_original(text):
    assert [pattern.findall(text) for pattern in _mmmu._NUMBERS[1:]] == [
        pattern.findall(text) for pattern in PLAINER
    ]


def test_a_long_run_of_digits_is_read_in_time_that_grows_with_its_length():
    assert score_short_answer("x" + "1" * 300_000 + "y", ["7"]).value == 0.0


OPTIONS_MMMU_PRO = [f"thing {i}" for i in range(9)]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: C", "C"),
        ("I think of A.\nAnswer: (H)", "H"),
        ("answer B\nfinal answer - d", "D"),
        ("Answer: A\nso the Answer is B", "A"),
        ("Answer: because of (D)", "B"),
        ("Answer is not clear", "I"),
        ("Answer: J\nperhaps (C)", "C"),
        ("**Answer: B**", None),
        ("It is (E)", "E"),
        ("G.", "G"),
        ("we would say it is Thing 4 and no other", "E"),
        ("no idea", None),
        ("", None),
    ],
)
def test_the_last_line_that_states_a_letter_decides(text, letter):
    score = mmmu_pro_choice(text, "C", OPTIONS_MMMU_PRO)
    assert score.answer == letter
    assert score.value == float(letter == "C")
    assert (score.outcome is Outcome.UNPARSED) == (letter is None)


LONG = "A long explanation that says a great deal and does not come to an end. "


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("**Answer: B**", "B"),
        ("so the answer is (c) 50 kip", "C"),
        ("Answer: because", "B"),
        ("D) Phytoplasma", "D"),
        ("D: Phytoplasma", "D"),
        ("(A) True", "A"),
        ("a cat", "a cat"),
        ("C\n\nExplanation: " + LONG, "C"),
        ("**(B)**", "B"),
        ("g", "G"),
        ("$1,249", "$1,249"),
        (LONG + r"\boxed{41} or \boxed{42}.", "42"),
        (LONG + r"\boxed{41", LONG + r"\boxed{41"),
        (LONG + "\n\n**(C)**.", "C"),
        ("$527.89 million (or approximately $528 million, as said above)", "$527.89 million"),
        (LONG + "\n**42 units**", "42 units"),
        ("", ""),
    ],
)
def test_an_answer_is_shortened_as_in_the_suite(text, answer):
    assert shorten_answer(text, "E") == answer


@pytest.mark.parametrize(
    ("by", "text", "answer"),
    [
        ("none", "<think>x</think>B", "<think>x</think>B"),
        ("strip_thinking_mmmu", "<think>Answer: A</think>\n**Answer: B**", "B"),
        ("strip_thinking_mmmu", "Answer: C <think>no, Answer: D", "C"),
        ("kimi_k3_mmmu", "Answer: A<|close|>think<|sep|><|open|>response<|sep|>C<|close|>", "C"),
        ("kimi_k3_mmmu", "<|open|>response<|sep|>B<|close|>response<|sep|>x(D)", "B"),
        ("kimi_k3_mmmu", "<|open|>response<|sep|> <|end|> <|close|>message B", "message B"),
        ("kimi_k3_mmmu", "<think>x</think>Answer: E", "E"),
    ],
)
def test_the_post_processors_of_the_suite(by, text, answer):
    told = apply_post_process(text, by)
    assert told.endswith(answer) if by == "kimi_k3_mmmu" else told == answer


def test_letters_go_up_to_the_last_option():
    assert shorten_answer("Answer: H", "E") == "Answer: H"
    assert shorten_answer("Answer: H", "J") == "H"


@pytest.mark.parametrize(
    "piece", [" ", "answer ", "Answer: ", "\\boxed{", "(or ", "(", "*", "**", "<|open|>", "A "]
)
def test_long_answers_are_read_in_time_that_grows_with_their_length(piece):
    text = piece * (200_000 // len(piece))
    began = time.process_time()
    for by in ("strip_thinking_mmmu", "kimi_k3_mmmu"):
        mmmu_pro_choice(apply_post_process(text, by), "A", OPTIONS_MMMU_PRO)
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b.", "B"),
        ("(C)\nbecause of A", "C"),
        ("The answer is (d)", "D"),
        ("answer: E or A", "E"),
        ("option B, not C", "B"),
        ("the answer about it: D", "A"),
        ("the answer is clear: D", "C"),
        ("A cat, so D", "D"),
        ("A Cat, so D", "A"),
        ("I think D", "D"),
        ("it is a dog", "A"),
        ("F", None),
        ("Because", None),
        ("", None),
    ],
)
def test_the_letter_that_an_answer_gives(text, letter):
    assert find_letter(text, "E") == letter


def test_a_video_has_four_options():
    assert find_letter("E, or B", "D") == "B"
    assert score_about("image", "E", "E").value == 1.0
    assert score_about("video", "E", "D").outcome is Outcome.UNPARSED


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("image: A\naudio: so it is\n said\nvideo: C", "so it is said"),
        ("Audio: one\nAUDIO : two", "two"),
        ("audio:\nvideo: C", ""),
        ("we heard audio: x", "we heard audio: x"),
        ("image: A", "image: A"),
        ("\n \n audio:  a\tb ", "a b"),
    ],
)
def test_the_section_of_a_medium_counts(text, section):
    assert find_section("audio", text) == section


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("One two three four.", True),
        ("one two", True),
        ("one", False),
        ("one two three four five six", True),
        ("one two three four five six seven", False),
        ("image: x\naudio: one two, three", True),
        ("(laughs) um, one two three four", True),
        ("", False),
    ],
)
def test_half_of_the_words_may_be_wrong(text, right):
    assert score_about("audio", text, "one two three four").value == float(right)


def test_a_silent_clip_has_an_empty_transcript():
    assert score_about("audio", "...", "(silence)").value == 1.0
    assert score_about("audio", "hello", "(silence)").value == 0.0


@pytest.mark.parametrize("piece", [" ", "\n", "answer ", "audio\n", "audio:", "a ", "( "])
def test_long_answers_are_read_in_bounded_time(piece):
    text = piece * (100_000 // len(piece))
    began = time.process_time()
    score_about("image", text, "A")
    assert time.process_time() - began < 5.0


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
def test_what_each_metric_gives(metric, text, answer, value):
    assert metric(text, answer) == pytest.approx(value)


def test_chinese_words_are_those_that_jieba_finds():
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
def test_a_class_is_shared_with_the_others_that_are_named(text, answer, value):
    assert longbench.classification(["Food", "Foodie", "Color"])(text, answer) == value


def test_a_class_after_a_dropped_one_is_kept_as_in_the_published_metric():
    assert longbench.classification(["a", "ab", "abc"])("abc", "abc") == 0.5


def test_the_best_answer_counts_and_only_code_keeps_its_outer_white_space():
    score = longbench.best(longbench.qa_f1, " blue ", ["red", "blue"])
    assert (score.value, score.outcome, score.answer) == (1.0, Outcome.CORRECT, "blue")
    assert longbench.best(longbench.qa_f1, "blue car", ["blue"]).outcome is Outcome.PARTIAL
    assert longbench.best(longbench.code_similarity, "    x", ["    x"]).answer == "    x"


@given(st.text(alphabet="abc. \n", max_size=40), st.text(alphabet="abc. \n", max_size=40))
def test_similarities_lie_between_0_and_1_and_a_text_is_like_itself(text, other):
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
def test_the_greatest_sum_counts_and_of_several_the_first(told, answer, tied, target):
    score = likeliest(told, "ABCD", target)
    assert (score.answer, score.parts) == (answer, {TIED: float(tied)})
    assert (score.value, score.outcome is Outcome.CORRECT) == (
        float(answer == target),
        answer == target,
    )


@given(st.lists(st.floats(-50, 0), min_size=4, max_size=4), st.floats(-20, 0))
def test_what_all_choices_share_decides_nothing(values, shared):
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
def test_the_first_run_of_digits_decides(text, outcome, contained):
    score = first_digits(text, "01868")
    assert score.outcome is outcome
    assert score.parts == {
        "first_digits": float(outcome is Outcome.CORRECT),
        "contained": contained,
    }
