import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.schema import Outcome
from serve_eval.scorers.rouge import f_measures, rouge1

pytest.importorskip("rouge_score", reason="needs the optional extra rouge")


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


@given(st.text(alphabet="ab c.é\n", max_size=30), st.text(alphabet="ab c.é\n", max_size=30))
def test_rouge_1_is_what_its_definition_says(text, target):
    found, wanted = (Counter(re.findall("[a-z0-9]+", t.lower())) for t in (text, target))
    total = found.total() + wanted.total()
    assert f_measures(text, target)["rouge1"] == pytest.approx(
        2 * (found & wanted).total() / total if total else 0.0
    )
