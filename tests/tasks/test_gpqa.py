from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from serve_eval.datasets.known import GPQA_PASSWORD
from serve_eval.errors import DatasetError, PlanError
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Message, Response, Spec
from serve_eval.tasks._samples import shuffle
from serve_eval.tasks.gpqa import INSTRUCTION, choice_orders, suite_orders, task
from tests.tasks.made_data import encrypted_zip

EXACT: dict[str, Any] = {"suite_exact": True}
SEED: dict[str, Any] = {"random_seed": 1}


def test_the_order_of_the_choices_is_fixed_per_row() -> None:
    assert choice_orders(6, 0) == [
        [2, 0, 1, 3],
        [0, 1, 3, 2],
        [0, 2, 1, 3],
        [1, 0, 3, 2],
        [2, 0, 3, 1],
        [3, 1, 2, 0],
    ]
    assert choice_orders(3, 0) == choice_orders(198, 0)[:3]
    assert choice_orders(6, 1) != choice_orders(6, 0)


def test_suite_exact_has_the_order_of_a_machine_without_a_cache(data_root: Path) -> None:
    asked = shuffle(198, 0)
    orders = [suite_orders(asked, 0)[row] for row in asked[:4]]
    assert orders == [
        [2, 0, 3, 1],
        [2, 3, 0, 1],
        [3, 2, 0, 1],
        [0, 3, 1, 2],
    ]  # as lm-eval 0.4.8 and 0.4.10 have them
    roots = DataRoots(roots=(data_root,))
    usual, exact, other = (
        task(**options).load(roots, 198).samples for options in ({}, EXACT, {**EXACT, **SEED})
    )
    assert [s.id for s in usual] == [s.id for s in exact] != [s.id for s in other]
    assert sum(one.prompt == two.prompt for one, two in zip(usual, exact, strict=True)) < 30
    assert list(task(**EXACT).load(roots, 9).samples) == list(exact[:9]), (
        "the number of samples does not change the order"
    )
    assert (task().protocol["choice_seed"], task(suite_exact=True).protocol["choice_seed"]) == (
        0,
        None,
    )
    with pytest.raises(PlanError, match="no effect with suite_exact"):
        task(choice_seed=1, suite_exact=True)


def test_the_archive_is_read_with_its_password_and_nothing_is_written(data_root: Path) -> None:
    before = sorted(data_root.rglob("*"))
    dataset = task().load(DataRoots(roots=(data_root,)), 198)
    assert sorted(data_root.rglob("*")) == before
    assert [Path(file.path).name for file in dataset.files] == ["dataset.zip"]
    assert b"Which," not in (data_root / "gpqa/dataset.zip").read_bytes()
    with (
        zipfile.ZipFile(data_root / "gpqa/dataset.zip") as archive,
        pytest.raises(RuntimeError, match="encrypted"),
    ):
        archive.read("dataset/gpqa_diamond.csv")
    assert [s.id for s in dataset.samples[:6]] == [
        f"diamond-{i}" for i in (106, 99, 129, 143, 102, 170)
    ]


def test_the_prompt_is_the_suites_and_the_letter_that_of_the_right_answer(data_root: Path) -> None:
    sample = task().load(DataRoots(roots=(data_root,)), 198).samples[0]
    with zipfile.ZipFile(data_root / "gpqa/dataset.zip") as archive:
        text = archive.read("dataset/gpqa_diamond.csv", pwd=GPQA_PASSWORD).decode()
    row = list(csv.DictReader(io.StringIO(text, newline="")))[106]
    assert isinstance(sample.prompt, str)
    assert sample.prompt.startswith(f"{INSTRUCTION}\n{row['Question']}\nA) ")
    choices = dict(line.split(") ") for line in sample.prompt.split("\n")[-4:])
    assert choices[sample.target] == row["Correct Answer"].strip()
    assert set(choices.values()) == {
        v.strip() for k, v in row.items() if k.endswith("Answer") or "Incorrect" in k
    }
    score = task().score(sample, Response(text=f"Answer: {sample.target}", finish_reason="stop"))
    assert score.parts == {"first_answer": 1.0, "last_answer": 1.0}


def test_every_subset_and_chat(data_root: Path) -> None:
    options = {
        "subset": "main",
        "num_samples": 12,
        "apply_chat_template": True,
        "system_prompt": "Think.",
    }
    made = build_task(Spec(name="gpqa", options=options))
    dataset = made.load(DataRoots(roots=(data_root,)), 12)
    assert made.reference_file == "gpqa_main"
    assert dataset.deviation == "12 questions, where main has 448"
    assert dataset.samples[0].prompt[0] == Message(role="system", content="Think.")
    assert made.sampling.stop == ()
    assert task().sampling.stop == ("</s>",)


def test_a_plain_file_of_the_hub_s_layout_is_read_too(data_root: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(data_root / "gpqa/dataset.zip") as archive:
        text = archive.read("dataset/gpqa_diamond.csv", pwd=GPQA_PASSWORD)
    (tmp_path / "gpqa").mkdir()
    (tmp_path / "gpqa/gpqa_diamond.csv").write_bytes(text)
    plain = task().load(DataRoots(roots=(tmp_path,)), 198)
    assert plain.samples == task().load(DataRoots(roots=(data_root,)), 198).samples


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK", "BadZipFile"),
        (
            encrypted_zip({"dataset/gpqa_diamond.csv": b"Question\nq\n"}, b"other"),
            r"RuntimeError|BadZipFile",
        ),
        (encrypted_zip({"x": b""}, GPQA_PASSWORD), "the archive has no gpqa_diamond.csv"),
        (
            encrypted_zip({"gpqa_diamond.csv": b"Question\nq\n"}, GPQA_PASSWORD),
            "Incorrect Answer 1",
        ),
    ],
)
def test_a_broken_archive_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "dataset.zip").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        task().load(DataRoots(roots=(tmp_path,)), 198)
