from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from serve_eval.datasets.local import DataFile
from serve_eval.errors import DatasetError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import DataRoots, Dataset, Message, Outcome, Plan, Response, Spec
from serve_eval.tasks.aime import Year, prompt_text, task
from tests.tasks.made_data import write_jsonl

YEARS: tuple[Year, ...] = (2024, 2025, 2026)


def _load(root: Path, year: Year, wanted: int = 30) -> Dataset:
    return task(year=year).load(DataRoots(roots=(root,)), wanted)


def test_only_the_newest_problems_ask_for_a_box() -> None:
    assert prompt_text("p", 2024) == prompt_text("p", 2025) == "Question: p\nAnswer:"
    box = "Please reason step by step, and put your final answer within \\boxed{}."
    assert prompt_text("p", 2026) == f"Question: p\n{box}\nAnswer:"


def test_every_year_is_read_from_its_layout(data_root: Path) -> None:
    oldest, old, new = (_load(data_root, year) for year in YEARS)
    assert (
        [s.target for s in oldest.samples]
        != [s.target for s in old.samples]
        == [s.target for s in new.samples]
    )
    assert [one.deviation for one in (oldest, old, new)] == [None] * 3
    [message] = new.samples[0].prompt
    assert isinstance(message, Message)
    assert "\\boxed{}" in message.content
    sample = old.samples[0]
    score = task().score(
        sample, Response(text=f"\\boxed{{0{sample.target}}}", finish_reason="stop")
    )
    assert score.parts == {"string": 0.0, "integer": 1.0}


def test_a_year_in_two_files_is_read_in_their_order(tmp_path: Path) -> None:
    parts = [
        [{"problem": f"{part} {i}", "answer": f"{i}"} for i in range(15)] for part in ("I", "II")
    ]
    write_jsonl(tmp_path / "aime/test2025-I.jsonl", parts[0])
    with pytest.raises(DatasetError, match="'test2025-II'"):
        _load(tmp_path, 2025)
    write_jsonl(tmp_path / "aime/test2025-II.jsonl", parts[1])
    dataset = _load(tmp_path, 2025)
    assert [Path(file.path).name for file in dataset.files] == [
        "test2025-I.jsonl",
        "test2025-II.jsonl",
    ]
    assert (
        dataset.files[0]
        == DataFile(
            tmp_path / "aime/test2025-I.jsonl", (tmp_path / "aime/test2025-I.jsonl").read_bytes()
        ).source
    )
    by_id = {sample.id: sample for sample in dataset.samples}
    assert [by_id[f"2025-{i}"].prompt[0].content for i in (0, 15)] == [  # type: ignore[union-attr]
        "Question: I 0\nAnswer:",
        "Question: II 0\nAnswer:",
    ]


@pytest.mark.parametrize("year", [2024, 2025])
@pytest.mark.parametrize(
    ("form", "outcome", "integer"),
    [
        ("First $3$ ways, so \\boxed{1000} is out.\n\\[ n = \\boxed{%s} \\]", Outcome.CORRECT, 1),
        ("It is $%s$.", Outcome.CORRECT, 1),
        ("%s", Outcome.CORRECT, 1),
        ("\\boxed{0%s}", Outcome.WRONG, 1),
        ("The answer is %s.", Outcome.WRONG, 1),
        ("\\boxed{1000}", Outcome.WRONG, 0),
        ("I cannot say.", Outcome.UNPARSED, 0),
    ],
)
def test_answers_to_real_problems_are_read(
    shared: Path, year: Year, form: str, outcome: Outcome, integer: float
) -> None:
    dataset = _load(shared / "data", year)
    assert (len(dataset.samples), dataset.deviation) == (30, None)
    for sample in dataset.samples:
        text = form % sample.target if "%" in form else form
        score = task(year=year).score(sample, Response(text=text, finish_reason="stop"))
        assert (score.outcome, score.parts["integer"]) == (outcome, integer), (sample.id, text)


@pytest.mark.usefixtures("simulated_here")
@pytest.mark.parametrize(("accuracy", "value"), [(1.0, 100.0), (0.0, 0.0)])
def test_real_problems_are_asked_end_to_end(
    shared: Path, tmp_path: Path, accuracy: float, value: float
) -> None:
    for year in (2024, 2025):
        plan = Plan(
            model="simulated",
            launcher=Spec(name="simulated", options={"accuracy": accuracy, "strict_fields": True}),
            tasks=(Spec(name="aime", options={"year": year}),),
            dataset_roots=(str(shared / "data"),),
            no_reference=True,
        )
        report = asyncio.run(evaluate(plan, tmp_path / f"{year}", environ={}))
        assert [(one.result.scored, one.result.value) for one in report.tasks] == [(30, value)]


def test_an_answer_that_is_no_integer_is_an_error_of_the_data(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "test.jsonl", [{"problem": "p", "answer": "x"}])
    with pytest.raises(DatasetError, match="must hold integers, not 'x'"):
        _load(tmp_path, 2025, 1)
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "p", "answer": "1"}))
    with pytest.raises(DatasetError, match="no text in column problem"):
        _load(tmp_path, 2025, 1)


def test_too_few_problems_are_an_error(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "aime24/test2024.jsonl", [{"problem": "p", "answer": "1"}])
    assert _load(tmp_path, 2024, 1).deviation == "1 problems, where AIME 2024 has 30"
    with pytest.raises(DatasetError, match="last of 1 problems; 2 are needed"):
        _load(tmp_path, 2024, 2)


def test_more_problems_than_the_year_has_are_told(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "aime24/test2024.jsonl", [{"problem": f"p{i}", "answer": "1"} for i in range(31)]
    )
    assert _load(tmp_path, 2024, 1).deviation == "31 problems, where AIME 2024 has 30"
