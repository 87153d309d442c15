from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import DataRoots, Response, Sample
from serve_eval.tasks._mmlu_subjects import CATEGORY_OF, SUBCATEGORY_OF, SUBJECTS
from serve_eval.tasks.mmlu import _sample, task


def test_the_sample_of_4096_is_the_golden_one_of_4104(shared: Path) -> None:
    dataset = task().load(DataRoots(roots=(shared / "data",)), 4096)
    ids = [sample.id for sample in dataset.samples]
    assert len(ids) == 4104
    assert dataset.total == 14042
    assert ids[:5] == [f"abstract_algebra-{row}" for row in (26, 86, 2, 55, 75)]
    assert ids[-3:] == [f"world_religions-{row}" for row in (82, 109, 151)]
    assert Counter(sample.target for sample in dataset.samples) == {
        "A": 955,
        "B": 1014,
        "C": 1077,
        "D": 1058,
    }


def test_a_literal_none_cell_prints_as_nan_unless_told_otherwise(shared: Path) -> None:
    roots = DataRoots(roots=(shared / "data",))

    def options_of(none_cells: str) -> list[str]:
        dataset = task(none_cells=none_cells).load(roots, 14042)  # type: ignore[arg-type]
        questions = [str(sample.prompt).rsplit("\n\n", 1)[1] for sample in dataset.samples]
        wanted = {"nan": ". nan", "none": ". None"}[none_cells]
        return [
            s.id
            for s, q in zip(dataset.samples, questions, strict=True)
            if any(x.endswith(wanted) for x in q.split("\n"))
        ]

    with_none = options_of("none")
    assert sorted(with_none) == sorted(
        f"{subject}-{row}"
        for subject, rows in {
            "college_computer_science": (10, 94),
            "college_mathematics": (8, 21, 60),
            "college_physics": (60,),
            "electrical_engineering": (41, 68, 107, 117),
        }.items()
        for row in rows
    )
    assert set(with_none) <= set(options_of("nan"))


def test_all_questions_are_taken_in_file_order_when_more_are_wanted_than_there_are(
    data_root: Path,
) -> None:
    dataset = task().load(DataRoots(roots=(data_root,)), 5700)
    assert len(dataset.samples) == 5700
    assert [sample.id for sample in dataset.samples[:3]] == [
        "abstract_algebra-0",
        "abstract_algebra-1",
        "abstract_algebra-2",
    ]


def test_as_many_as_there_are_are_all_of_them_though_subjects_differ_in_size() -> None:
    assert len(_sample({"small": 3, "large": 10}, 13, 0)) == 13
    assert len(_sample({"small": 3, "large": 10}, 12, 0)) == 3 + 6


def test_the_prompt_has_its_two_spaces_five_shots_and_no_trailing_space(data_root: Path) -> None:
    prompt = task().load(DataRoots(roots=(data_root,)), 57).samples[0].prompt
    assert isinstance(prompt, str)
    head = (
        "The following are multiple choice questions (with answers) about  abstract"
        " algebra.\n\nWhat is "
    )
    assert prompt.startswith(head)
    assert prompt.count("\nAnswer:") == 6
    assert prompt.endswith("\nAnswer:")


def test_every_subject_has_a_category() -> None:
    assert len(SUBJECTS) == 57
    assert {CATEGORY_OF[SUBCATEGORY_OF[subject]] for subject in SUBJECTS} == set(
        CATEGORY_OF.values()
    )
    assert Counter(CATEGORY_OF[SUBCATEGORY_OF[s]] for s in SUBJECTS)["STEM"] == 18


def test_the_breakdown_counts_subjects_and_categories() -> None:
    samples = [
        Sample(id=str(i), prompt="p", target="A", metadata={"subject": subject})
        for i, subject in enumerate(["anatomy", "anatomy", "virology", "astronomy"])
    ]
    table = task().breakdown(zip(samples, [1.0, 0.0, 1.0, 1.0], strict=True))
    assert table["subject"] == {
        "anatomy": {"value": 50.0, "scored": 2},
        "astronomy": {"value": 100.0, "scored": 1},
        "virology": {"value": 100.0, "scored": 1},
    }
    assert table["category"] == {
        "STEM": {"value": 100.0, "scored": 1},
        "other (business, health, misc.)": {"value": pytest.approx(200 / 3), "scored": 3},
    }


def test_the_answer_is_matched_by_its_prefix() -> None:
    sample = Sample(id="x", prompt="p", target="C")
    assert task().score(sample, Response(text=" C", finish_reason="length")).value == 1.0


def _copy(data_root: Path, target: Path) -> Path:
    shutil.copytree(data_root / "mmlu", target / "mmlu")
    return target / "mmlu"


def test_a_missing_subject_is_named(data_root: Path, tmp_path: Path) -> None:
    (_copy(data_root, tmp_path) / "test" / "virology_test.csv").unlink()
    with pytest.raises(
        DatasetError, match=r"incomplete: 1 files are missing:\n.*virology_test\.csv"
    ):
        task().load(DataRoots(roots=(tmp_path,)), 4096)


@pytest.mark.parametrize("row", ["a,b,c\n", "q,1,2,3,4,E\n", 'q,1,2,3,4,A\n"open', ""])
def test_a_malformed_file_is_named(data_root: Path, tmp_path: Path, row: str) -> None:
    (_copy(data_root, tmp_path) / "test" / "virology_test.csv").write_text(row)
    with pytest.raises(DatasetError, match=r"virology_test\.csv"):
        task().load(DataRoots(roots=(tmp_path,)), 4096)


def test_more_shots_than_there_are_dev_rows_are_refused(data_root: Path, tmp_path: Path) -> None:
    dev = _copy(data_root, tmp_path) / "dev" / "virology_dev.csv"
    dev.write_text("".join(dev.read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(DatasetError, match="virology"):
        task().load(DataRoots(roots=(tmp_path,)), 4096)
    with pytest.raises(PlanError, match="num_fewshot"):
        task(num_fewshot=6)
