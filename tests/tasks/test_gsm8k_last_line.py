from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.errors import PlanError
from serve_eval.schema import DataRoots, Message, Outcome, Response, Sample
from serve_eval.tasks import gsm8k, gsm8k_inferencemax, gsm8k_inferencex
from serve_eval.tasks._gsm8k import STOP, score

LINE = "End your response with the answer on the last line, formatted as: #### [number]"


def test_every_question_has_the_line_and_the_shots_are_those_of_gsm8k(data_root: Path) -> None:
    roots = DataRoots(roots=(data_root,))
    dataset = gsm8k_inferencemax.task().load(roots, 9)
    plain = gsm8k.task(apply_chat_template=True, fewshot_as_multiturn=True).load(roots, 9)
    assert [s.id for s in dataset.samples] == [s.id for s in plain.samples]
    for sample, other in zip(dataset.samples, plain.samples, strict=True):
        assert len(sample.prompt) == 11
        said = [t.text for t in sample.prompt if isinstance(t, Message)]
        turns = [text.replace(f"\n{LINE}", "") for text in said]
        assert turns == [t.text for t in other.prompt if isinstance(t, Message)]
        assert all(text.endswith(f"\n{LINE}\nAnswer:") for text in said[::2])


@pytest.mark.parametrize(
    ("text", "outcome", "answer", "flexible"),
    [
        ("#### 3\nno:\n#### 18", Outcome.CORRECT, "18", 1),
        ("#### 18\n#### 3", Outcome.WRONG, "3", 0),
        ("it is 18", Outcome.UNPARSED, None, 1),
        ("#### 18\n3", Outcome.CORRECT, "18", 0),
    ],
)
def test_the_last_marked_number_decides(
    text: str, outcome: Outcome, answer: str | None, flexible: float
) -> None:
    found = score(
        Sample(id="x", prompt="p", target="#### 18"), Response(text=text, finish_reason="stop")
    )
    assert (found.outcome, found.answer) == (outcome, answer)
    assert found.parts == {
        "strict-match": float(outcome is Outcome.CORRECT),
        "flexible-extract": flexible,
    }


def test_both_names_are_one_protocol_under_two_references() -> None:
    one, other = gsm8k_inferencemax.task(), gsm8k_inferencex.task()
    assert one.protocol == other.protocol
    assert (one.reference_file, other.reference_file) == ("gsm8k_inferencemax", "gsm8k_inferencex")
    assert (one.sampling.max_tokens, one.sampling.stop) == (12288, ())
    assert gsm8k_inferencemax.task(suite_exact=True).sampling.stop == STOP == ("</s>", "<|im_end|>")
    with pytest.raises(PlanError, match="apply_chat_template"):
        gsm8k_inferencex.task(apply_chat_template=False)
