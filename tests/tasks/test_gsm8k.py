from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Message, Outcome, Response, Sample, Spec
from serve_eval.tasks import gsm8k_inferencex
from serve_eval.tasks._gsm8k import shots as drawn
from serve_eval.tasks._samples import shuffle
from serve_eval.tasks.gsm8k import task


def _rows(draws: int, *, twice: bool = False) -> list[list[int]]:
    shots = drawn([{"i": i} for i in range(7473)], 5, 0, twice=twice)
    return [[row["i"] for row in next(shots)] for _ in range(draws)]


def test_the_order_is_that_of_a_shuffled_hugging_face_dataset() -> None:
    assert shuffle(1319, 0)[:8] == [264, 725, 996, 586, 1010, 12, 904, 130]


def test_the_shots_are_drawn_per_question_from_one_generator() -> None:
    assert _rows(3) == [
        [6917, 3155, 6209, 7292, 3445],
        [331, 2121, 4188, 3980, 3317],
        [6420, 6798, 2484, 3904, 2933],
    ]


def test_a_chat_prompt_in_one_turn_uses_the_second_of_two_draws() -> None:
    assert _rows(2, twice=True) == [[331, 2121, 4188, 3980, 3317], [4779, 7304, 7439, 1789, 4134]]


def _turns(roots: DataRoots, **options: object) -> list[str]:
    made = task(apply_chat_template=True, **options)  # type: ignore[arg-type]
    return [
        message.text
        for s in made.load(roots, 9).samples
        for message in s.prompt
        if isinstance(message, Message)
    ]


def test_the_sampler_of_newer_versions_draws_once_for_a_chat_prompt_in_one_turn(
    data_root: Path,
) -> None:
    roots = DataRoots(roots=(data_root,))
    plain = [sample.prompt for sample in task().load(roots, 9).samples]
    assert _turns(roots, fewshot_sampler="0.4.10") == plain
    assert not set(_turns(roots)) & set(plain)
    assert _turns(roots) == _turns(roots, fewshot_sampler="0.4.9")
    turns = {"fewshot_as_multiturn": True}
    assert _turns(roots, **turns) == _turns(roots, **turns, fewshot_sampler="0.4.10")


def test_the_sampler_is_in_the_protocol_where_it_changes_the_shots() -> None:
    assert "fewshot_sampler" not in task(apply_chat_template=True).protocol
    assert "fewshot_sampler" not in task(fewshot_sampler="0.4.10").protocol
    many = task(apply_chat_template=True, fewshot_as_multiturn=True, fewshot_sampler="0.4.10")
    assert "fewshot_sampler" not in many.protocol
    for one in (task, gsm8k_inferencex.task):
        newer = one(apply_chat_template=True, fewshot_as_multiturn=False, fewshot_sampler="0.4.10")
        assert newer.protocol["fewshot_sampler"] == "0.4.10"


def test_the_first_raw_prompt_is_the_golden_one(shared: Path) -> None:
    dataset = task().load(DataRoots(roots=(shared / "data",)), 1319)
    prompt = dataset.samples[0].prompt
    assert isinstance(prompt, str)
    assert len(prompt) == 3964
    digest = "dffd383baf9b45cdc94c19eadfff82c179760c3e5444ffd82d9f555e1fc78400"
    assert hashlib.sha256(prompt.encode()).hexdigest() == digest
    assert len(dataset.samples) == dataset.total == 1319


def test_the_request_carries_the_protocol_of_the_suite() -> None:
    made = build_task(Spec(name="gsm8k"))
    assert made.sampling.temperature == 0.0
    assert made.sampling.max_tokens == 256
    assert made.sampling.stop == ("Question:", "</s>", "<|im_end|>")
    assert made.extra == {"truncate_prompt_tokens": 4096}
    assert build_task(Spec(name="gsm8k", options={"truncate_prompt_tokens": None})).extra == {}


def test_a_chat_prompt_in_one_turn_holds_the_shots_and_the_question(data_root: Path) -> None:
    options = {"apply_chat_template": True, "num_fewshot": 2, "system_prompt": "Be brief."}
    dataset = build_task(Spec(name="gsm8k", options=options)).load(DataRoots(roots=(data_root,)), 9)
    system, user = dataset.samples[0].prompt
    assert system == Message(role="system", content="Be brief.")
    assert isinstance(user, Message)
    assert user.text.count("Question: ") == 3
    assert user.text.endswith("\nAnswer:")


def test_fewshot_as_multiturn_makes_each_shot_two_turns(data_root: Path) -> None:
    made = task(apply_chat_template=True, fewshot_as_multiturn=True, num_fewshot=2)
    prompt = made.load(DataRoots(roots=(data_root,)), 9).samples[0].prompt
    assert not isinstance(prompt, str)
    assert [turn.role for turn in prompt] == ["user", "assistant", "user", "assistant", "user"]
    assert "#### " in prompt[1].content


def test_no_shots_leave_the_bare_question(data_root: Path) -> None:
    prompt = task(num_fewshot=0).load(DataRoots(roots=(data_root,)), 9).samples[0].prompt
    assert isinstance(prompt, str)
    assert prompt.startswith("Question: ")
    assert prompt.count("Question:") == 1


@pytest.mark.parametrize(
    ("text", "value", "outcome", "parts"),
    [
        ("... #### 18", 1.0, Outcome.CORRECT, (1.0, 1.0)),
        ("the answer is 18", 0.5, Outcome.PARTIAL, (0.0, 1.0)),
        ("#### 18\nSo 19.", 0.5, Outcome.PARTIAL, (1.0, 0.0)),
        ("#### 17", 0.0, Outcome.WRONG, (0.0, 0.0)),
        ("I cannot say", 0.0, Outcome.UNPARSED, (0.0, 0.0)),
    ],
)
def test_the_value_is_the_mean_of_both_filters(
    text: str, value: float, outcome: Outcome, parts: tuple[float, float]
) -> None:
    sample = Sample(id="x", prompt="p", target="9*2=18\n#### 18")
    score = task().score(sample, Response(text=text, finish_reason="stop"))
    assert (score.value, score.outcome) == (value, outcome)
    assert (score.parts["strict-match"], score.parts["flexible-extract"]) == parts


def test_either_filter_can_be_the_value_alone() -> None:
    sample = Sample(id="x", prompt="p", target="#### 18")
    answer = Response(text="the answer is 18", finish_reason="stop")
    assert task(filter="flexible-extract").score(sample, answer).outcome is Outcome.CORRECT
    assert task(filter="strict-match").score(sample, answer).outcome is Outcome.UNPARSED


def test_multiturn_without_chat_is_refused() -> None:
    with pytest.raises(PlanError, match="apply_chat_template"):
        task(fewshot_as_multiturn=True)


def test_a_missing_split_is_named_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n')
    with pytest.raises(DatasetError, match="'train'") as caught:
        task().load(DataRoots(roots=(tmp_path,)), 1)
    assert "--dataset-root" in caught.value.hint


def test_a_data_set_that_is_too_short_is_incomplete(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n' * 7)
    with pytest.raises(DatasetError, match="incomplete"):
        task().load(DataRoots(roots=(tmp_path,)), 1319)
    assert len(task().load(DataRoots(roots=(tmp_path,)), 7).samples) == 7


def test_the_same_rows_give_the_same_samples_from_jsonl_csv_and_parquet(
    tmp_path: Path, data_root: Path
) -> None:
    import csv

    from pyarrow import Table, parquet

    splits = ("train", "test")
    lines = {s: (data_root / f"gsm8k/{s}.jsonl").read_text().splitlines()[:30] for s in splits}
    rows = {s: [json.loads(line) for line in lines[s]] for s in splits}
    for split, table in rows.items():
        for kind in ("jsonl", "csv", "parquet"):
            (tmp_path / kind / "main").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"jsonl/main/{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in table)
        )
        with (tmp_path / f"csv/main/{split}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["question", "answer"])
            writer.writeheader()
            writer.writerows(table)
        parquet.write_table(
            Table.from_pylist(table), tmp_path / f"parquet/main/{split}-00000-of-00001.parquet"
        )
    samples = [
        task().load(DataRoots(roots=(tmp_path / kind,)), 30).samples
        for kind in ("jsonl", "csv", "parquet")
    ]
    assert samples[0] == samples[1] == samples[2]
