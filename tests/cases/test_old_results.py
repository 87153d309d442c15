import pytest

from serve_eval.cases import file
from serve_eval.cases.biochatter import read
from serve_eval.cases.questions import questions
from serve_eval.errors import DatasetError, NotComparableError, ReferenceFileError
from serve_eval.evaluation.prepare import prepare
from serve_eval.schema import Plan, Spec
from serve_eval.verdicts import reference_samples, references
from serve_eval.workflows.references.import_published import import_results
from tests.cases.made import write_biochatter

HEAD = "model_name,subtask,score,iterations,md5_hash,datetime,biochatter_version\n"


@pytest.fixture
def exam(tmp_path):
    """Return the hashes of the five cases of the exam."""
    write_biochatter(tmp_path / "data")
    return [q.md5 for q in questions(file.read([str(tmp_path / "data")]), "medical_exam").asked]


def _specs(tmp_path, *names):
    path = str(tmp_path / "data")
    return [
        Spec(name=f"cases:{name}", options={"path": path}) for name in names or ("medical_exam",)
    ]


def _csv(path, *rows):
    lines = (
        f"{model},x,{score},{times},{md5},2024-0{i % 9 + 1}-01 10:00:00,0.5\n"
        for i, (model, score, times, md5) in enumerate(rows)
    )
    path.write_text(HEAD + "".join(lines))
    return path


def test_both_forms_of_a_score_are_read(tmp_path):
    path = _csv(
        tmp_path / "r.csv",
        ("m", "1;0;2/4", 3, "a"),
        ("m", "0.3636/1", 5, "b"),
        ("m", "3/4", 1, "c"),
    )
    new, old, single = read(path)
    assert (new.scores, new.each, new.mean) == ((0.25, 0.0, 0.5), True, 0.25)
    assert (old.scores, old.each, old.mean) == ((0.3636,), False, 0.3636)
    assert (single.scores, single.each) == ((0.75,), True)


@pytest.mark.parametrize("score", ["", "x/1", "1/0", "2/1", "1;0/1", "nan/1"])
def test_a_score_that_is_none_is_told_with_its_line(tmp_path, score):
    path = _csv(tmp_path / "r.csv", ("m", "1/1", 1, "a"), ("m", score, 3, "b"))
    with pytest.raises(DatasetError, match=r"r\.csv:3: score"):
        read(path)


def test_a_file_without_the_columns_is_told(tmp_path):
    (tmp_path / "r.csv").write_text("model_name,confidence\nm,1\n")
    with pytest.raises(
        DatasetError,
        match="not a result file: there is no column subtask, score, iterations, md5_hash",
    ):
        read(tmp_path / "r.csv")


def test_a_model_with_results_of_every_case_becomes_a_reference_with_its_scores(tmp_path, exam):
    one, two, never, three, four = exam
    results = _csv(
        tmp_path / "medical_exam.csv",
        ("org/m:7", "1;1;0/1", 3, one),
        ("org/m:7", "0;0;0/1", 3, two),
        ("org/m:7", "0;0;0/1", 3, never),
        ("org/m:7", "1;1;1/1", 3, three),
        ("org/m:7", "2;1;2/2", 3, four),
        ("old", "0.4/1", 5, one),
        ("org/m:7", "1;1;1/1", 3, "0" * 32),
    )
    found = import_results([results], _specs(tmp_path), tmp_path / "refs")
    assert (found.rows, found.matched, found.orphans) == (7, 6, 1)
    assert [(w.model, w.cases, w.of, w.runs) for w in found.written] == [
        ("org/m:7", 5, 5, 3),
        ("old", 1, 5, 0),
    ]
    assert found.warnings == [
        "cases:medical_exam: 1 model has results of only some of the 5 cases, such as old (1): no"
        " scores per sample are kept for it"
    ]
    by_model = references.load(tmp_path / "refs/cases-medical_exam.yaml")
    [whole] = by_model["org/m:7"]
    assert whole.value == pytest.approx(100 * (2 / 3 + 0 + 0 + 1 + 5 / 6) / 5)
    assert whole.source == "BioChatter's results, medical_exam.csv: 5 of 5 cases"
    assert (whole.protocol["as_biochatter"], whole.protocol["scorers"]) == (
        True,
        {"exact": 1, "words": 1},
    )
    stored = reference_samples.read(tmp_path / "refs" / whole.runs.samples, whole.runs.sha256)
    assert [list(map(round, run, [2] * 5)) for run in stored.runs] == [
        [1, 0, 0, 1, 1],
        [1, 0, 0, 1, 0.5],
        [0, 0, 0, 1, 1],
    ]
    [old] = by_model["old"]
    assert (old.value, old.runs) == (40.0, None)


def test_results_of_two_tests_of_the_same_cases_are_not_mixed(tmp_path, exam):
    first = _csv(tmp_path / "one.csv", ("m", "1/1", 1, exam[0]))
    second = _csv(tmp_path / "two.csv", ("m", "0/1", 1, exam[0]))
    with pytest.raises(
        DatasetError, match=r"one\.csv and two\.csv both have results of cases:medical_exam for m"
    ):
        import_results([first, second], _specs(tmp_path), tmp_path / "refs")


def test_the_newest_row_of_a_case_counts_and_an_entry_is_replaced_for_a_reason(tmp_path, exam):
    results = _csv(tmp_path / "r.csv", ("m", "0/1", 1, exam[0]), ("m", "1/1", 1, exam[0]))
    [written] = import_results([results], _specs(tmp_path), tmp_path / "refs").written
    assert written.value == 100.0
    with pytest.raises(ReferenceFileError, match="already has a reference for"):
        import_results([results], _specs(tmp_path), tmp_path / "refs")
    import_results([results], _specs(tmp_path), tmp_path / "refs", reason="again")


def test_results_of_a_task_that_is_scored_otherwise_are_refused(tmp_path, exam):
    results = _csv(tmp_path / "r.csv", ("m", "1/1", 1, exam[0]))
    [spec] = _specs(tmp_path)
    lenient = Spec(name=spec.name, options={**spec.options, "as_biochatter": False})
    with pytest.raises(DatasetError, match="is not scored as BioChatter scored") as error:
        import_results([results], [lenient], tmp_path / "refs")
    assert "Give --set cases:medical_exam.as_biochatter=true and no scorer" in error.value.hint
    assert not (tmp_path / "refs").exists()


def test_nothing_is_written_where_one_of_the_tasks_or_models_cannot_be(tmp_path, exam):
    """Otherwise the corrected command would demand a reason to replace its own results."""
    [rag, *_] = questions(file.read([str(tmp_path / "data")]), "rag_interpretation").asked
    both = _csv(
        tmp_path / "both.csv",
        ("new", "1/1", 1, exam[0]),
        ("m", "1/1", 1, exam[0]),
        ("m", "1/1", 1, rag.md5),
    )
    first, second = _specs(tmp_path, "medical_exam", "rag_interpretation")
    lenient = Spec(name=second.name, options={**second.options, "as_biochatter": False})
    with pytest.raises(
        DatasetError, match="cases:rag_interpretation: this task is not scored as BioChatter scored"
    ):
        import_results([both], [first, lenient], tmp_path / "refs")
    assert not (tmp_path / "refs").exists()
    import_results(
        [_csv(tmp_path / "rag.csv", ("m", "1/1", 1, rag.md5))], [second], tmp_path / "refs"
    )
    with pytest.raises(
        ReferenceFileError,
        match=r"cases-rag_interpretation\.yaml: m already has a reference for default",
    ):
        import_results([both], [first, second], tmp_path / "refs")
    assert [path.name for path in (tmp_path / "refs").glob("*.yaml")] == [
        "cases-rag_interpretation.yaml"
    ]


def test_models_of_nearly_the_same_name_keep_scores_of_their_own_also_when_they_are_replaced(
    tmp_path, exam
):
    def rows(model, score):
        return [(model, score, 1, md5) for md5 in exam]

    results = _csv(tmp_path / "r.csv", *rows("m:7", "1/1"), *rows("m-7", "0/1"))
    import_results([results], _specs(tmp_path), tmp_path / "refs")
    again = _csv(tmp_path / "again.csv", *rows("m:7", "1/2"))
    import_results([again], _specs(tmp_path), tmp_path / "refs", reason="newer")
    assert len(list((tmp_path / "refs/samples").iterdir())) == 3
    for [entry] in references.load(tmp_path / "refs/cases-medical_exam.yaml").values():
        stored = reference_samples.read(tmp_path / "refs" / entry.runs.samples, entry.runs.sha256)
        assert 100 * sum(stored.runs[0]) / 5 == pytest.approx(entry.value, abs=0.01)


def test_models_without_results_of_every_case_are_told_in_one_line(tmp_path, exam):
    results = _csv(tmp_path / "r.csv", *((model, "1/1", 1, exam[0]) for model in "abc"))
    found = import_results([results, results], _specs(tmp_path), tmp_path / "refs")
    assert found.rows == 3
    assert found.warnings == [
        "cases:medical_exam: 3 models have results of only some of the 5 cases, such as a (1): no"
        " scores per sample are kept for them"
    ]


def test_scores_that_are_of_no_answer_are_refused_by_the_name_of_their_file(tmp_path, exam):
    results = _csv(tmp_path / "entity_selection.csv", ("m", "1/1", 1, exam[0]))
    with pytest.raises(
        DatasetError, match=r"entity_selection\.csv: these scores come from a test that inspects"
    ):
        import_results([results], _specs(tmp_path), tmp_path / "refs")


def test_a_reference_that_does_not_say_that_it_is_scored_as_biochatter_scores_is_no_such(
    tmp_path, exam
):
    results = _csv(tmp_path / "medical_exam.csv", *(("m", "1/1", 1, md5) for md5 in exam))
    import_results([results], _specs(tmp_path), tmp_path / "refs")
    launcher = Spec(name="external", options={"base_url": "http://127.0.0.1:9/v1"})
    tasks = tuple(_specs(tmp_path))
    plan = Plan(model="m", launcher=launcher, tasks=tasks, references_dir=str(tmp_path / "refs"))
    assert prepare(plan)
    [file] = (tmp_path / "refs").glob("*.yaml")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if "as_biochatter" not in line))
    with pytest.raises(
        NotComparableError, match="as_biochatter is True here and None with the reference"
    ):
        prepare(plan)
