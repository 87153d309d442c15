"""Test runs exported to files of lm-eval, without lm-eval, and to BioChatter's files and tables."""

import asyncio
import csv
import hashlib
import json
import shutil
from datetime import UTC, datetime

import pytest

from serve_eval.errors import DatasetError, RunFolderError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.harness.layout import file_name, mean_stderr, sanitize, stamp
from serve_eval.report.text import disarm
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.workflows.export import export
from serve_eval.workflows.export.biochatter import (
    CaseScores,
    make_overview,
    split_subtasks,
    tabulate_task,
)
from tests.cli.command import serve_eval
from tests.json_files import read_json

LINE = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
HASHES = {"doc_hash", "prompt_hash", "target_hash"}


def _plan(data_root, **more):
    return Plan(
        **{
            "model": "my-org/m",
            "launcher": Spec(
                name="simulated", options={"accuracy": 0.5, "prompt_logprobs": "echo", "seed": 3}
            ),
            "tasks": (
                Spec(name="gsm8k"),
                Spec(name="mmlu", options={"scoring": "loglikelihood"}),
                Spec(name="perplexity"),
                Spec(name="aime"),
            ),
            "dataset_roots": (str(data_root),),
            "limit": 6,
            "no_reference": True,
            **more,
        }
    )


@pytest.fixture(scope="module")
def run(data_root, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "out"
    return out, asyncio.run(evaluate(_plan(data_root), out, environ={}))


def _lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.usefixtures("simulated_here")
def test_every_task_has_its_figures_and_its_samples(run, tmp_path):
    out, report = run
    results, *samples = export(out, tmp_path / "to").files
    content = read_json(results)
    assert [file.name.split("_")[1] for file in samples] == ["gsm8k", "mmlu", "perplexity", "aime"]
    assert {file.parent for file in (results, *samples)} == {tmp_path / "to/my-org__m"}
    for task, file in zip(report.tasks, samples, strict=True):
        name, result, lines = task.result.task, task.result, _lines(file)
        metric = result.metric
        figures = content["results"][name]
        assert figures[f"{metric.name},none"] * metric.scale == pytest.approx(result.value)
        assert figures["sample_len"] == len(lines) == result.scored == 6
        assert content["n-samples"][name] == {"original": 6, "effective": 6}
        assert content["higher_is_better"][name] == {metric.name: metric.higher_is_better}
        for line in lines:
            assert LINE | HASHES | {metric.name} <= line.keys()
            assert line["filter"] == "none"
            assert line["target_hash"] == hashlib.sha256(line["target"].encode()).hexdigest()
        values = [line[metric.name] for line in lines]
        assert sum(values) / 6 * metric.scale == pytest.approx(result.value)
        assert figures[f"{metric.name}_stderr,none"] == pytest.approx(mean_stderr(values))
    assert content["config"]["model_args"].startswith("model=my-org/m,base_url=http://")
    kinds = {name: one["output_type"] for name, one in content["configs"].items()}
    assert kinds == {
        "gsm8k": "generate_until",
        "mmlu": "multiple_choice",
        "perplexity": "loglikelihood_rolling",
        "aime": "generate_until",
    }
    assert content["configs"]["gsm8k"]["metric_list"] == [
        {"metric": "accuracy", "aggregation": "mean", "higher_is_better": True}
    ]
    gsm8k = _lines(samples[0])[0]
    assert content["n-shot"]["gsm8k"] == 5
    assert (
        content["results"]["gsm8k"]["strict-match,none"]
        == report.tasks[0].result.parts["strict-match"] / 100
    )
    assert set(gsm8k["metrics"]) == {"accuracy", "flexible-extract", "strict-match"}
    asked = gsm8k["arguments"]["gen_args_0"]
    assert asked["arg_0"].count("Question:") == 6
    assert (asked["arg_1"]["max_gen_toks"], asked["arg_1"]["do_sample"]) == (256, False)
    assert isinstance(gsm8k["resps"][0][0], str)
    mmlu = _lines(samples[1])[0]
    assert [mmlu["arguments"][f"gen_args_{i}"]["arg_1"] for i in range(4)] == [
        " A",
        " B",
        " C",
        " D",
    ]
    assert all(float(one[0][0]) < 0 for one in mmlu["resps"])
    assert float(_lines(samples[2])[0]["resps"][0][0]) < 0
    [turns] = _lines(samples[3])[0]["arguments"]["gen_args_0"]["arg_0"]
    assert json.loads(turns)[-1]["role"] == "user"


@pytest.mark.usefixtures("simulated_here")
def test_the_same_run_gives_the_same_files_within_it_by_default(run):
    out, report = run
    first = export(out)
    contents = [file.read_bytes() for file in first.files]
    assert [file.read_bytes() for file in export(out).files] == contents
    assert first.files[0].parent == out / "lm-eval/my-org__m"
    assert stamp(datetime.fromisoformat(report.started_at)) in first.files[0].name


@pytest.mark.usefixtures("simulated_here")
def test_the_fields_are_those_of_recorded_logs(run, shared, tmp_path):
    folder = shared / "data/recorded/lmeval_logs"
    recorded = read_json(min(folder.glob("results_*.json")))
    results, samples, *_ = export(run[0], tmp_path).files
    content = read_json(results)
    assert recorded.keys() <= content.keys()
    assert recorded["config"].keys() - content["config"].keys() == {
        f"{name}_seed" for name in ("random", "numpy", "torch", "fewshot")
    }
    theirs, ours = recorded["results"]["gsm8k"], content["results"]["gsm8k"]
    assert "alias" in theirs.keys() & ours.keys()
    assert {key.count(",") for key in ours if key not in ("name", "alias", "sample_len")} == {1}
    line = _lines(min(folder.glob("samples_*.jsonl")))[0]
    assert line.keys() - {"exact_match"} <= _lines(samples)[0].keys()
    names = [file.name for file in folder.iterdir()]
    assert f"results_{stamp(datetime(2025, 9, 9, 13, 31, 53, 431753, tzinfo=UTC))}.json" in names


@pytest.mark.usefixtures("simulated_here")
def test_repeats_are_the_responses_of_one_line(data_root, tmp_path):
    out = tmp_path / "out"
    plan = _plan(data_root, tasks=(Spec(name="gsm8k"),), repeats=3, limit=4)
    report = asyncio.run(evaluate(plan, out, environ={}))
    results, samples = export(out).files
    assert [len(line["resps"][0]) for line in _lines(samples)] == [3] * 4
    value = read_json(results)["results"]["gsm8k"]["accuracy,none"]
    assert value * 100 == pytest.approx(report.tasks[0].result.value)


@pytest.mark.usefixtures("simulated_here")
def test_what_has_no_answer_is_left_out_and_said(data_root, tmp_path):
    broken = {"accuracy": 1.0, "failure_rate": 0.5, "seed": 2}
    plan = _plan(
        data_root,
        tasks=(Spec(name="gsm8k"),),
        launcher=Spec(name="simulated", options=broken),
        limits=Limits(max_attempts=1),
    )
    out = tmp_path / "out"
    result = asyncio.run(evaluate(plan, out, environ={})).tasks[0].result
    assert 0 < result.failed < 6
    told = export(out)
    assert told.notes == (
        f"gsm8k: {result.scored} of 6 samples have a score; the others are not exported",
    )
    assert len(_lines(told.files[1])) == result.scored
    content = read_json(told.files[0])
    assert content["n-samples"]["gsm8k"] == {"original": 6, "effective": result.scored}


@pytest.mark.usefixtures("simulated_here")
def test_a_run_without_a_report_or_with_other_data_is_refused(run, data_root, tmp_path):
    import shutil

    out = tmp_path / "out"
    shutil.copytree(run[0], out)
    (out / "report.json").unlink()
    with pytest.raises(RunFolderError, match="holds no finished run"):
        export(out)
    shutil.copy(run[0] / "report.json", out)
    stored = read_json(out / "plan.json")
    stored["fingerprints"]["gsm8k"]["samples"] = "6 sha256:other"
    (out / "plan.json").write_text(json.dumps(stored))
    with pytest.raises(DatasetError, match="gsm8k: the data differs from the data of"):
        export(out)


@pytest.mark.usefixtures("simulated_here")
@pytest.mark.parametrize(
    ("model", "folder"),
    [
        ("my-org/m", "my-org__m"),
        ("a\0b\n\x7f\udcff", "a__b__"),
        ("..", "__"),
        ("", "__"),
        ("../..", "..__.."),
        ("/etc/passwd", "__etc__passwd"),
        (".hidden", ".hidden"),
        ("模" * 53 + "b", "模" * 53 + "b"),
        ("模" * 54, "模" * 53 + "-"),
        ("m" * 5000, "m" * 160 + "-"),
    ],
)
def test_any_name_of_a_model_becomes_one_folder_below_the_chosen_one(tmp_path, model, folder):
    """Servers may list any name for their model."""
    cut = folder.endswith("-")
    assert (file_name(model)[:-8] if cut else file_name(model)) == folder
    assert len(file_name(model).encode()) <= 170
    (tmp_path / file_name(model)).mkdir()
    assert (tmp_path / file_name(model)).parent.samefile(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [file_name(model)]


@pytest.mark.usefixtures("simulated_here")
def test_long_names_that_begin_alike_stay_apart():
    assert file_name("m" * 500) != file_name("m" * 501)
    assert file_name("m" * 500) == file_name("m" * 500)


@pytest.mark.usefixtures("simulated_here")
def test_a_run_of_a_model_with_a_nul_in_its_name_is_exported(run, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(run[0], out)
    report = read_json(out / "report.json")
    report["endpoint"]["model"] = "a\0b/../c\n"
    (out / "report.json").write_text(json.dumps(report))
    results, *_ = export(out, tmp_path / "to").files
    assert results.parent == tmp_path / "to/a__b__..__c__"
    content = read_json(results)
    assert (content["model_name"], content["model_name_sanitized"]) == (
        "a\0b/../c\n",
        "a__b__..__c__",
    )


@pytest.mark.usefixtures("simulated_here")
def test_a_folder_that_cannot_be_made_is_said(run, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="cannot write: Not a directory"):
        export(run[0], tmp_path / "file/to")


@pytest.mark.usefixtures("simulated_here")
def test_names_and_spreads_are_lm_evals():
    assert sanitize('my-org/m:"x"') == "my-org__m__x__"
    assert mean_stderr([1.0]) is None
    assert mean_stderr([1.0] * 75 + [0.0] * 25) == pytest.approx(0.04351941398892446)  # recorded


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
