"""Test BioChatter's files and tables of runs of cases."""

import csv

import pytest

from serve_eval.report.text import disarm
from serve_eval.workflows.export.biochatter import (
    CaseScores,
    make_overview,
    split_subtasks,
    tabulate_task,
)
from tests.cli.command import serve_eval

CASES = """
extraction:
  cases:
    - {case: "paper:assay:one", input: {prompt: What assay?}, expected: {answer: "=ELISA"}}
    - {case: "paper:tissue:one", input: {prompt: What tissue?}, expected: {answer: liver}}
    - {case: "paper:tissue:two", input: {prompt: What else?}, expected: {answer: lung}}
"""


def _rows(file):
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    top = tmp_path_factory.mktemp("runs")
    cases = top / "cases.yaml"
    cases.write_text(CASES)
    for name, accuracy in (("good", "1"), ("bad", "0")):
        serve_eval(
            f"run --launcher simulated -m org/{name} --cases {cases} --repeats 2"
            f" --set launcher.accuracy={accuracy} --no-reference -o {top}/{name}",
            exits=3,
        )
    return top


def test_each_case_has_its_scores_and_each_failure_its_row(runs, tmp_path):
    serve_eval(f"runs export {runs} --format biochatter -o {tmp_path}", exits=0)
    [file] = tmp_path.glob("*extraction.csv")
    assert file.read_text().splitlines()[0] == (
        "model_name,subtask,score,iterations,md5_hash,datetime,biochatter_version"
    )
    rows = {(row["model_name"], row["subtask"]): row for row in _rows(file)}
    assert len(rows) == 6
    good = rows["org/good", "paper:assay:one"]
    assert (good["score"], good["iterations"]) == ("1;1/1", "2")
    assert rows["org/bad", "paper:tissue:two"]["score"] == "0;0/1"
    assert len({row["md5_hash"] for row in rows.values()}) == 3
    [failures] = tmp_path.glob("*extraction_failure_modes.csv")
    failed = _rows(failures)
    assert len(failed) == 6  # both iterations of three cases
    assert {row["model_name"] for row in failed} == {"org/bad"}
    assert not list(tmp_path.glob("*confidence.csv"))
    overview = _rows(tmp_path / "processed/overview.csv")
    assert [(row["Full model name"], row["Median Accuracy"]) for row in overview] == [
        ("org/good", "1"),
        ("org/bad", "0"),
    ]
    [subtasks] = (tmp_path / "processed").glob("*_by_subtask.csv")
    assert {(row["Full model name"], row["Subtask"]) for row in _rows(subtasks)} == {
        (model, subtask) for model in ("org/good", "org/bad") for subtask in ("assay", "tissue")
    }


def test_result_files_of_biochatter_are_added_to_the_tables(runs, tmp_path):
    old = tmp_path / "old_task.csv"
    old.write_text(
        "model_name,subtask,score,iterations,md5_hash,datetime,biochatter_version\n"
        "org/good,x:assay:y,0.6/1,5,h1,2024-04-27 11:48:18,0.4.10\n"
        "org/good,x:tissue:y,1.0;0.0/1,2,h2,2025-04-27 11:48:18,0.5.0\n"
    )
    flags = f"--format biochatter --add {old}"
    serve_eval(f"runs export {runs}/good -o {tmp_path}/out {flags}", exits=0)
    [row] = _rows(tmp_path / "out/processed/old_task.csv")
    assert (row["Score achieved"], row["Score possible"]) == ("4", "7")
    by_subtask = {
        r["Subtask"]: r for r in _rows(tmp_path / "out/processed/old_task_by_subtask.csv")
    }
    assert (by_subtask["assay"]["Accuracy"], by_subtask["tissue"]["Accuracy"]) == ("0.6", "0.5")
    assert "old_task" in (tmp_path / "out/processed/overview.csv").read_text().splitlines()[0]


def test_add_is_refused_for_other_formats(runs, tmp_path):
    serve_eval(
        f"runs export {runs}/good --add {tmp_path}/a.csv",
        exits=2,
        tells="--add is for --format biochatter",
    )


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM", "\tx", "\rx"])
def test_a_spreadsheet_runs_no_answer(text):
    assert disarm(text) == f"'{text}"
    assert disarm(f"a{text}") == f"a{text}"


@pytest.mark.usefixtures("simulated_here")
def test_deployments_of_one_model_are_not_merged(tmp_path):
    cases = tmp_path / "cases.yaml"
    cases.write_text(CASES)
    flags = {
        "bf16": [],
        "fp8": ["--quant-algo", "FP8"],
        "fp8-kv": ["--quant-algo", "FP8", "--kv-cache-quant-algo", "FP8"],
        "mtp": ["--set", "accuracy_spec.spec_dec_algo=MTP"],
        "old: build": [],
    }
    for i, (name, more) in enumerate(flags.items()):
        for model in ("org/m:7:gguf:Q4", *(["org/single"] if i == 0 else [])):
            serve_eval(
                f"run --launcher simulated -m {model} --cases {cases} --repeats 2 --set",
                f"launcher.accuracy={1 - i % 2}",
                "--no-reference",
                *more,
                "-o",
                tmp_path / "runs" / (name if model != "org/single" else "single"),
                exits=3,
            )
    serve_eval(f"runs export {tmp_path}/runs --format biochatter -o {tmp_path}/out", exits=0)
    names = [f"org/m:7:gguf:Q4 ({name.replace(':', '-')})" for name in flags]
    [file] = (tmp_path / "out").glob("*extraction.csv")
    rows = _rows(file)
    assert {row["model_name"] for row in rows} == {*names, "org/single"}
    assert len(rows) == 18
    # A reader that splits names at colons still finds the model and its size.
    assert {tuple(name.split(":")[:2]) for name in names} == {("org/m", "7")}
    for table in (tmp_path / "out/processed").glob("*.csv"):
        told = {row["Full model name"]: row for row in _rows(table)}
        assert set(told) == {*names, "org/single"}
    overview = {
        row["Full model name"]: row for row in _rows(tmp_path / "out/processed/overview.csv")
    }
    assert [overview[name]["Mean Accuracy"] for name in names] == ["1", "0", "1", "0", "1"]
    failures = _rows(next((tmp_path / "out").glob("*extraction_failure_modes.csv")))
    assert {row["model_name"] for row in failures} == {names[1], names[3]}


def _case(model, subtask, *scores, iterations=None):
    return CaseScores(
        model=model, subtask=subtask, scores=scores, iterations=iterations or len(scores)
    )


CASES_TABLES = [
    _case("a", "extraction:assay:1", 1.0, 0.5, 0.0),
    _case("a", "extraction:tissue:1", 1.0, 1.0, 1.0),
    _case("b", "extraction:assay:1", 0.6, iterations=5),
    _case("b", "extraction:tissue:1", 1.0, iterations=5),
]


def test_a_row_sums_scores_and_the_spread_of_each_case():
    b, a = tabulate_task(CASES_TABLES)
    assert (a.model, a.achieved, a.possible, a.iterations) == ("a", 4.5, 6, 3)
    assert a.sd == pytest.approx(0.5)
    assert a.accuracy == pytest.approx(0.75)
    assert (b.model, b.achieved, b.possible, b.sd, b.iterations) == ("b", 8.0, 10, 0.0, 5)


def test_an_older_row_counts_once_for_each_iteration_in_tables_of_subtasks_too():
    subtasks = split_subtasks(CASES_TABLES)
    assert list(subtasks) == ["assay", "tissue"]
    by_model = {row.model: row.accuracy for row in tabulate_task(subtasks["assay"])}
    assert by_model == {"a": pytest.approx(0.5), "b": pytest.approx(0.6)}


def test_cases_of_one_subtask_have_no_table_of_subtasks():
    assert split_subtasks([_case("a", "one"), _case("a", "two:x"), _case("b", "three:x")]) == {}


def test_median_and_sd_of_a_model_are_those_of_its_tasks_alone():
    tables = {
        task: tabulate_task([_case("m", "c", value), *more])
        for task, value, more in (
            ("t1", 0.2, [_case("n", "c", 0.5)]),
            ("t2", 0.6, []),
            ("t3", 1.0, []),
            ("t4", 0.8, []),
        )
    }
    m, n = make_overview(tables)
    assert m.accuracies == (0.2, 0.6, 1.0, 0.8)
    assert m.mean == pytest.approx(0.65)
    assert m.median == pytest.approx(0.7)  # with the mean among the tasks it would be .65
    assert m.sd == pytest.approx(0.341565, abs=1e-6)
    assert n.accuracies == (0.5, None, None, None)
    assert (n.median, n.sd) == (0.5, None)
    assert n.list_cells() == ["n", "0.5", "", "", "", "0.5", "0.5", ""]
