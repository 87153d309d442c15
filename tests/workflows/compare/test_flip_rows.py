"""Test the row of a flip: the answers of both sides in a sentence, and its link to the sample."""

import pytest

from serve_eval.report.run.conclusions import make_statements
from serve_eval.schema import Flip
from serve_eval.workflows.compare.rows import describe_flip


@pytest.mark.parametrize("id_", ["test-1", "a: b", "cases: 2 -> 3"])
@pytest.mark.parametrize(
    ("answer", "said"), [("8", "B answered 8"), (None, "B answered nothing readable")]
)
def test_a_flip_names_the_answer_of_each_side_and_leads_to_its_sample(
    id_: str, answer: str | None, said: str
) -> None:
    flip = Flip(
        id=id_,
        scores=(1.0, 0.0),
        answers=("6", answer),
        target="6",
        texts=("6", answer or ""),
        first_difference=None,
    )
    [row] = describe_flip("gsm8k", flip)
    assert row == ("e.g.", f"{id_}: A answered 6, {said}, expected 6 (scores 1 and 0)")
    [statement] = make_statements([row], "gsm8k")
    assert statement.href.startswith("#sample=gsm8k%2F")
    assert "answered" not in statement.href
