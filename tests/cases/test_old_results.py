from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval import reference, reference_samples
from serve_eval.cases import file
from serve_eval.cases.questions import questions
from serve_eval.errors import DatasetError, ReferenceFileError
from serve_eval.old_results import import_results, read
from serve_eval.schema import Spec
from tests.cases.made import write_biochatter

HEAD = "model_name,subtask,score,iterations,md5_hash,datetime,biochatter_version\n"


@pytest.fixture
def exam(tmp_path: Path) -> list[str]:
    """The hashes of the four cases of the exam."""
    write_biochatter(tmp_path / "data")
    return [q.md5 for q in questions(file.read([str(tmp_path / "data")]), "medical_exam").asked]


def _specs(tmp_path: Path, *names: str) -> list[Spec]:
    path = str(tmp_path / "data")
    return [Spec(name=f"cases:{name}", options={"path": path}) for name in names or ("medical_exam",)]


def _csv(path: Path, *rows: tuple[str, str, int, str]) -> Path:
    lines = (
        f"{model},x,{score},{times},{md5},2024-0{i % 9 + 1}-01 10:00:00,0.5\n"
        for i, (model, score, times, md5) in enumerate(rows)
    )
    path.write_text(HEAD + "".join(lines))
    return path


def test_both_forms_of_a_score_are_read(tmp_path: Path) -> None:
    path = _csv(tmp_path / "r.csv", ("m", "1;0;2/4", 3, "a"), ("m", "0.3636/1", 5, "b"), ("m", "3/4", 1, "c"))
    new, old, single = read(path)
    assert (new.scores, new.each, new.mean) == ((0.25, 0.0, 0.5), True, 0.25)
    assert (old.scores, old.each, old.mean) == ((0.3636,), False, 0.3636)
    assert (single.scores, single.each) == ((0.75,), True)


@pytest.mark.parametrize("score", ["", "x/1", "1/0", "2/1", "1;0/1", "nan/1"])
def test_a_score_that_is_none_is_told_with_its_line(tmp_path: Path, score: str) -> None:
    path = _csv(tmp_path / "r.csv", ("m", "1/1", 1, "a"), ("m", score, 3, "b"))
    with pytest.raises(DatasetError, match=r"r\.csv:3: score"):
        read(path)


def test_a_file_without_the_columns_is_told(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("model_name,confidence\nm,1\n")
    with pytest.raises(DatasetError, match="no result file: there is no column subtask, score, iterations, md5_hash"):
        read(tmp_path / "r.csv")


def test_a_model_with_results_of_every_case_becomes_a_reference_with_its_scores(
    tmp_path: Path, exam: list[str]
) -> None:
    one, two, three, four = exam
    results = _csv(
        tmp_path / "medical_exam.csv",
        ("org/m:7", "1;1;0/1", 3, one),
        ("org/m:7", "0;0;0/1", 3, two),
        ("org/m:7", "1;1;1/1", 3, three),
        ("org/m:7", "2;1;2/2", 3, four),
        ("old", "0.4/1", 5, one),
        ("org/m:7", "1;1;1/1", 3, "0" * 32),
    )
    found = import_results([results], _specs(tmp_path), tmp_path / "refs")
    assert (found.rows, found.matched, found.orphans) == (6, 5, 1)
    assert [(w.model, w.cases, w.of, w.runs) for w in found.written] == [("org/m:7", 4, 4, 3), ("old", 1, 4, 0)]
    assert found.warnings == ["cases:medical_exam: old: results of 1 of 4 cases alone: no scores per sample are kept"]
    by_model = reference.load(tmp_path / "refs/cases-medical_exam.yaml")
    [whole] = by_model["org/m:7"]
    assert whole.value == pytest.approx(100 * (2 / 3 + 0 + 1 + 5 / 6) / 4)
    assert whole.source == "BioChatter's results, medical_exam.csv: 4 of 4 cases"
    assert whole.runs is not None
    stored = reference_samples.read(tmp_path / "refs" / whole.runs.samples, whole.runs.sha256)
    assert [list(map(round, run, [2] * 4)) for run in stored.runs] == [[1, 0, 1, 1], [1, 0, 1, 0.5], [0, 0, 1, 1]]
    [old] = by_model["old"]
    assert (old.value, old.runs) == (40.0, None)


def test_results_of_two_tests_of_the_same_cases_are_not_mixed(tmp_path: Path, exam: list[str]) -> None:
    first = _csv(tmp_path / "one.csv", ("m", "1/1", 1, exam[0]))
    second = _csv(tmp_path / "two.csv", ("m", "0/1", 1, exam[0]))
    with pytest.raises(DatasetError, match=r"one\.csv and two\.csv both have results of cases:medical_exam for m"):
        import_results([first, second], _specs(tmp_path), tmp_path / "refs")


def test_the_newest_row_of_a_case_counts_and_an_entry_is_replaced_for_a_reason(tmp_path: Path, exam: list[str]) -> None:
    results = _csv(tmp_path / "r.csv", ("m", "0/1", 1, exam[0]), ("m", "1/1", 1, exam[0]))
    [written] = import_results([results], _specs(tmp_path), tmp_path / "refs").written
    assert written.value == 100.0
    with pytest.raises(ReferenceFileError, match="has a reference for"):
        import_results([results], _specs(tmp_path), tmp_path / "refs")
    import_results([results], _specs(tmp_path), tmp_path / "refs", reason="again")
