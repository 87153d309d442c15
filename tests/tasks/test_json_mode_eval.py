from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.errors import DatasetError
from serve_eval.plan.prepared_task import request_of
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Message, Need, Response, Spec
from serve_eval.tasks.json_mode_eval import task
from tests.tasks.made_data import write_jsonl

ROW = {"prompt": [{"role": "user", "content": "q"}], "schema": "{}", "completion": "{}"}


def test_every_request_carries_its_own_schema(data_root: Path) -> None:
    made = build_task(Spec(name="json_mode_eval", options={"system_prompt": "Be exact."}))
    dataset = made.load(DataRoots(roots=(data_root,)), 100)
    assert dataset.deviation is None
    sample = dataset.samples[0]
    assert sample.id == "train-82"
    assert sample.prompt[0] == Message(role="system", content="Be exact.")
    sent = request_of(made, sample)
    schema = json.loads(sample.metadata["schema"])
    assert sent.extra == {
        "truncate_prompt_tokens": 1024,
        "response_format": {"type": "json", "schema": schema},
    }
    assert made.requires == {Need.GUIDED_DECODING}


def test_the_schema_goes_in_openai_s_form_or_not_at_all(data_root: Path) -> None:
    roots = DataRoots(roots=(data_root,))
    made = task(response_format="json_schema")
    sample = made.load(roots, 1).samples[0]
    sent = request_of(made, sample).extra["response_format"]
    schema = json.loads(sample.metadata["schema"])
    assert sent == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    plain = task(response_format="none")
    assert plain.requires == frozenset()
    assert "response_format" not in request_of(plain, plain.load(roots, 1).samples[0]).extra


def test_valid_and_exact_are_counted_apart(data_root: Path) -> None:
    made = task()
    sample = made.load(DataRoots(roots=(data_root,)), 1).samples[0]
    other = {**json.loads(sample.target), "size": -1}
    score = made.score(sample, Response(text=json.dumps(other), finish_reason="stop"))
    assert (score.value, score.parts["schema_valid"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "row",
    [
        {**ROW, "prompt": "q"},
        {**ROW, "prompt": None},
        {**ROW, "schema": "{"},
        {**ROW, "completion": "no"},
        {**ROW, "schema": '{"type": 1}'},
    ],
)
def test_a_row_that_cannot_be_asked_is_an_error_of_the_data(
    tmp_path: Path, row: dict[str, object]
) -> None:
    write_jsonl(tmp_path / "train.jsonl", [row])
    with pytest.raises(DatasetError):
        task().load(DataRoots(roots=(tmp_path,)), 1)
