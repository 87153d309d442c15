from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.schema import Outcome
from serve_eval.scorers.translation import (
    COUNTS,
    IN_FORM,
    corpus_bleu,
    extract_translation,
    score_translation,
    sentence_scorer,
)

sacrebleu = pytest.importorskip("sacrebleu", reason="needs the optional extra media")


@pytest.mark.parametrize(
    ("text", "translation", "in_form"),
    [
        ("Good day.\nGerman: Guten Tag.", "Guten Tag.", True),
        ("Good day.\ngerman: Guten Tag.\n", "Guten Tag.", True),
        ("Into German: this.\nGerman: Guten Tag.", "Guten Tag.", True),  # the last one counts
        ("x\nGerman: Guten Tag.\n\nI hope it helps.", "Guten Tag.", True),
        ("x\nGerman:\n\nGuten Tag.", "", True),  # like the suite, which cuts at an empty line
        ("x\nGerman: Guten\nTag.", "Guten\nTag.", True),
        ("Guten Tag.", "Guten Tag.", False),
        ("Translation: Guten Tag.", "Guten Tag.", False),
        ("Here is the translation: \u201cGuten Tag.\u201d", "Guten Tag.", False),
        ("x\nGerman: \"'Guten Tag.'\"", "Guten Tag.", True),
        ('"', '"', False),
        ("\ufeffGuten Tag.\u200b", "Guten Tag.", False),
        ("", "", False),
    ],
)
def test_the_translation_is_what_follows_the_name_of_the_language(
    text: str, translation: str, in_form: bool
) -> None:
    assert extract_translation(text, "German") == (translation, in_form)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("German: Guten Tag, Herr Meier.", Outcome.CORRECT),
        ("German: Guten Tag, Frau Meier.", Outcome.PARTIAL),
        ("German: Hallo", Outcome.WRONG),
        ("German:", Outcome.WRONG),
        ("", Outcome.WRONG),
    ],
)
def test_a_score_is_bleu_of_the_sentence_with_all_its_counts(answer: str, outcome: Outcome) -> None:
    score = score_translation(answer, "Guten Tag, Herr Meier.", "German", "13a")
    assert score.outcome is outcome
    assert (score.value == 1.0) is (outcome is Outcome.CORRECT)
    assert (score.value == 0.0) is (outcome is Outcome.WRONG)
    assert set(score.parts) == {*COUNTS, IN_FORM}
    assert score.parts["reference length"] == 6.0  # also if the answer is empty
    assert score.parts[IN_FORM] == float(bool(answer))


sentences = st.lists(st.sampled_from(["a", "b,", "c.", "d"]), max_size=8).map(" ".join)


@settings(max_examples=50)
@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=8))
def test_bleu_of_a_corpus_is_that_of_sacrebleu(pairs: list[tuple[str, str]]) -> None:
    scores = [score_translation(one, other, "German", "13a") for one, other in pairs]
    sums = [math.fsum(score.parts[name] for score in scores) for name in COUNTS]
    answers, references = zip(*pairs, strict=True)
    expected = sacrebleu.corpus_bleu(answers, [references], tokenize="13a").score
    assert 100.0 * corpus_bleu(sums) == pytest.approx(expected, abs=1e-9)


def test_chinese_is_cut_into_characters_and_japanese_needs_another_package() -> None:
    score = score_translation("你好世界", "你好世界。", "Chinese", "zh")
    assert (score.parts["answer length"], score.parts["reference length"]) == (4.0, 5.0)
    try:
        import MeCab  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        with pytest.raises(PlanError, match="tokenizer ja-mecab"):
            sentence_scorer("ja-mecab")
