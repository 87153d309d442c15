"""Test the scorers of speech and of summaries: word errors, translations and ROUGE."""

import math
import re
from collections import Counter
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.schema import Outcome
from serve_eval.scorers.rouge import f_measures, rouge1
from serve_eval.scorers.word_errors import (
    WordErrors,
    count_word_errors,
    normalize_transcript,
    score_transcript,
)
from serve_eval.tasks.covost2 import (
    COUNTS,
    IN_FORM,
    corpus_bleu,
    extract_translation,
    score_translation,
    sentence_scorer,
)

NEEDS_ROUGE = pytest.mark.skipif(find_spec("rouge_score") is None, reason="needs the extra rouge")

NEEDS_MEDIA = pytest.mark.skipif(find_spec("jiwer") is None, reason="needs the extra media")


@NEEDS_MEDIA
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Mr. President, I AGREE!", "mr president i agree"),
        ("<|startoftranscript|>yes<|end|>", "yes"),
        ("<b>yes</b> [applause] no", "yes no"),
        ("yes (he laughs) no ()", "yes no"),
        ("Uh, um, hmm, mm, mhm, mmm: umbrella", "umbrella"),
        ("Straße", "strasse"),
        ("ﬁve ½", "five 1 2"),  # decomposed by compatibility; the stroke is a symbol
        ("cafe\u0301", "cafe"),
        ("naïve", "nai ve"),  # the suite replaces a mark by a space
        ("it's 5% of €3", "it s 5 of 3"),
        ("a\u00a0b\n\nc", "a b c"),
        ("a < b and c > d", "a d"),  # read as markup, like in the suite
        ("(never closed", "never closed"),
        ("[...] -- !", ""),
        ("", ""),
    ],
)
def test_a_transcript_is_normalized_like_in_the_suite(text, words):
    assert normalize_transcript(text) == words


@NEEDS_MEDIA
@pytest.mark.parametrize(
    ("answer", "reference", "counts"),
    [
        ("a x c d", "a b c", (3, 2, 1, 0, 1)),
        ("A, b: c.", "a b c", (3, 3, 0, 0, 0)),
        ("a c", "a b c", (3, 2, 0, 1, 0)),
        ("", "a b", (2, 0, 0, 2, 0)),
        ("[music]", "a b", (2, 0, 0, 2, 0)),
        ("a b", "", (0, 0, 0, 0, 2)),
        ("a b", "(laughs)", (0, 0, 0, 0, 2)),
        ("...", "!", (0, 0, 0, 0, 0)),
    ],
)
def test_edits_are_counted_by_kind(answer, reference, counts):
    words, hits, substitutions, deletions, insertions = counts
    assert count_word_errors(answer, reference) == WordErrors(
        words=words,
        hits=hits,
        substitutions=substitutions,
        deletions=deletions,
        insertions=insertions,
    )


@NEEDS_MEDIA
@pytest.mark.parametrize(
    ("answer", "reference", "value", "outcome"),
    [
        ("yes it is", "Yes, it is.", 0.0, Outcome.CORRECT),
        ("yes it was", "Yes, it is.", 1 / 3, Outcome.PARTIAL),
        ("no", "Yes, it is.", 1.0, Outcome.WRONG),
        ("", "Yes, it is.", 1.0, Outcome.WRONG),
        ("a b c d", "a", 3.0, Outcome.PARTIAL),
        ("a b", "(laughs)", 2.0, Outcome.WRONG),
        ("[music]", "(laughs)", 0.0, Outcome.CORRECT),
    ],
)
def test_a_score_is_the_edits_per_reference_word(answer, reference, value, outcome):
    score = score_transcript(answer, reference)
    assert score.value == pytest.approx(value)
    assert score.outcome is outcome
    assert score.parts["edits"] == score.value * max(score.parts["words"], 1.0)


words = st.lists(st.sampled_from("abc"), max_size=7)


@NEEDS_MEDIA
@given(words, words)
def test_edits_are_the_levenshtein_distance(answer, reference):
    found = count_word_errors(" ".join(answer), " ".join(reference))
    assert found.edits == _distance(reference, answer)
    assert found.words == len(reference)
    assert found.hits + found.substitutions + found.insertions == len(answer)


def _distance(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(
        _distance(a[1:], b) + 1,
        _distance(a, b[1:]) + 1,
        _distance(a[1:], b[1:]) + (a[0] != b[0]),
    )


sacrebleu = pytest.importorskip("sacrebleu", reason="needs the extra media")


@NEEDS_MEDIA
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
def test_the_translation_is_what_follows_the_name_of_the_language(text, translation, in_form):
    assert extract_translation(text, "German") == (translation, in_form)


@NEEDS_MEDIA
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
def test_a_score_is_bleu_of_the_sentence_with_all_its_counts(answer, outcome):
    score = score_translation(answer, "Guten Tag, Herr Meier.", "German", "13a")
    assert score.outcome is outcome
    assert (score.value == 1.0) is (outcome is Outcome.CORRECT)
    assert (score.value == 0.0) is (outcome is Outcome.WRONG)
    assert set(score.parts) == {*COUNTS, IN_FORM}
    assert score.parts["reference length"] == 6.0  # also if the answer is empty
    assert score.parts[IN_FORM] == float(bool(answer))


sentences = st.lists(st.sampled_from(["a", "b,", "c.", "d"]), max_size=8).map(" ".join)


@NEEDS_MEDIA
@settings(max_examples=50)
@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=8))
def test_bleu_of_a_corpus_is_that_of_sacrebleu(pairs):
    scores = [score_translation(one, other, "German", "13a") for one, other in pairs]
    sums = [math.fsum(score.parts[name] for score in scores) for name in COUNTS]
    answers, references = zip(*pairs, strict=True)
    expected = sacrebleu.corpus_bleu(answers, [references], tokenize="13a").score
    assert 100.0 * corpus_bleu(sums) == pytest.approx(expected, abs=1e-9)


@NEEDS_MEDIA
def test_chinese_is_cut_into_characters_and_japanese_needs_another_package():
    score = score_translation("你好世界", "你好世界。", "Chinese", "zh")
    assert (score.parts["answer length"], score.parts["reference length"]) == (4.0, 5.0)
    try:
        import MeCab  # noqa: F401
    except ImportError:
        with pytest.raises(PlanError, match="tokenizer ja-mecab"):
            sentence_scorer("ja-mecab")


@NEEDS_ROUGE
@pytest.mark.parametrize(
    ("text", "target", "value", "outcome"),
    [
        ("The cat sat.", "the CAT sat", 1.0, Outcome.CORRECT),
        ("the the the", "the cat", 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2), Outcome.PARTIAL),
        ("dog", "cat", 0.0, Outcome.WRONG),
        ("running", "run", 0.0, Outcome.WRONG),  # no stemming
        ("été", "t", 1.0, Outcome.CORRECT),  # only a-z and 0-9 are letters
        ("", "cat", 0.0, Outcome.WRONG),
    ],
)
def test_rouge_1_is_f_of_the_common_words(text, target, value, outcome):
    score = rouge1(text, target)
    assert score.value == pytest.approx(value)
    assert score.outcome is outcome
    assert score.answer == text
    assert set(score.parts) == {"rouge1", "rouge2", "rougeL"}


@NEEDS_ROUGE
@given(st.text(alphabet="ab c.é\n", max_size=30), st.text(alphabet="ab c.é\n", max_size=30))
def test_rouge_1_is_what_its_definition_says(text, target):
    found, wanted = (Counter(re.findall("[a-z0-9]+", t.lower())) for t in (text, target))
    total = found.total() + wanted.total()
    assert f_measures(text, target)["rouge1"] == pytest.approx(
        2 * (found & wanted).total() / total if total else 0.0
    )
