"""Test exports of run folders: the table of deployments by tasks, and what was left out."""

import csv
import io
import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from junitparser import JUnitXml

from serve_eval.report.results_table import FORMATS
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

TASKS = ("word_problems", "passkey_short", "tool_calls")
MODEL = "org/llama-8b"
DEPLOYMENTS = {
    "20261128_100000_m": [],
    "20261128_100001_m": ["--quant-algo", "FP8"],
    "20261128_100002_m": ["--quant-algo", "FP8", "--kv-cache-quant-algo", "FP8"],
    "20261128_100003_m": ["--set", "accuracy_spec.spec_dec_algo=MTP"],
    "20261128_100004_m": ["--set", "launcher.seed=7"],
}
"""Five deployments of one model in folders whose names say nothing about them."""


def _run(folder, *more, tasks=",".join(TASKS), limit=12):  # noqa: B008 - a text
    model = [] if "-m" in more else ["-m", MODEL]
    done = serve_eval(
        f"run --launcher simulated -t {tasks} --limit {limit} --no-reference -o {folder}",
        *model,
        *map(str, more),
    )
    assert (folder / "report.json").exists(), done.stderr


def _export(arguments="", *, columns=200):
    done = serve_eval(f"runs export {arguments}", COLUMNS=str(columns), exits=0)
    return done.stdout


def _rows(folders=""):
    text = _export(f"{folders} --format csv")
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.fixture(scope="module")
def deployments(tmp_path_factory, simulated_here):
    top = tmp_path_factory.mktemp("deployments")
    for name, flags in DEPLOYMENTS.items():
        _run(top / name, *flags)
    return top


@pytest.mark.parametrize("name", FORMATS)
def test_five_deployments_of_one_model_are_five_rows(name, deployments):
    text = _export(f"{deployments} --format {name}")
    assert MODEL in text
    for task in TASKS:
        assert task in text.replace("\\", "")
    if name == "csv":
        assert text.count("\r\n") == 6
        return
    if name == "svg":
        root = ElementTree.fromstring(text)
        assert len(root.findall(".//{http://www.w3.org/2000/svg}circle")) == 15
        return
    assert text.count("N") >= 15
    assert text.replace("{[}", "[").count(" [") == 15  # an interval in each cell
    assert "FP8" in text
    assert "MTP" in text
    assert "N: NO REFERENCE" in text


def test_the_table_fits_eighty_columns_and_says_what_it_leaves_out(deployments):
    lines = _export(f"{deployments} --format table", columns=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    heads = [line for line in lines if line.startswith("quant_algo")]
    assert len(heads) > 1  # four attributes are needed to tell the rows apart: several blocks
    assert "launcher.seed" in heads[0]
    assert sum("[" in line for line in lines) == 15


def test_a_row_says_by_its_attributes_what_it_is(deployments):
    rows = _rows(deployments)
    assert [row["quant_algo"] for row in rows] == ["", "FP8", "FP8", "", ""]
    assert [row["kv_cache_quant_algo"] for row in rows] == ["", "", "FP8", "", ""]
    assert [row["spec_dec_algo"] for row in rows] == ["", "", "", "MTP", ""]
    assert [row["launcher.seed"] for row in rows] == ["", "", "", "", "7"]
    for row in rows:
        assert {row[f"{task} scored"] for task in TASKS} == {"12"}
        low, value, high = (float(row[f"tool_calls {one}"]) for one in ("low", "value", "high"))
        assert low <= value <= high


def test_names_of_folders_tell_runs_apart_that_nothing_else_does(tmp_path):
    for name in ("fp8-build-a", "fp8-build-b"):
        _run(tmp_path / name, tasks="word_problems")
    assert [row["run"] for row in _rows(tmp_path)] == ["fp8-build-a", "fp8-build-b"]


def test_of_two_runs_of_a_deployment_the_latest_counts_and_the_other_is_told(
    tmp_path,
):
    first, last = tmp_path / "20261128_100000_m", tmp_path / "20261129_100000_m"
    _run(first, tasks="word_problems")
    _run(last, "--rerun", "all", tasks="word_problems")
    [row] = _rows(tmp_path)
    assert row["word_problems run"] == str(last)
    assert row["word_problems other runs"] == "1"
    table = _export(f"{tmp_path} --format table")
    assert f"the latest of 2 runs, {last}; --all shows each" in table
    every = _export(f"{tmp_path} --format csv --all")
    assert every.count("\r\n") == 3
    assert str(first) in every


def test_tasks_of_a_deployment_from_several_runs_share_a_row(tmp_path):
    _run(tmp_path / "20261128_100000_m", tasks="word_problems")
    _run(tmp_path / "20261128_100009_m", tasks="passkey_short")
    _run(tmp_path / "fp8" / "passkey_short", tasks="passkey_short")
    rows = _rows(tmp_path)
    assert [bool(row["word_problems value"]) for row in rows] == [True, False]
    assert [bool(row["passkey_short value"]) for row in rows] == [True, True]


def test_a_copy_of_a_run_counts_once(tmp_path):
    _run(tmp_path / "a", tasks="word_problems")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert len(_rows(tmp_path)) == 1
    assert len(_rows(f"{tmp_path} {tmp_path}/a")) == 1
    assert "the same run as" in _export(f"{tmp_path} --format table")


def test_a_task_that_was_asked_in_two_ways_has_two_columns(tmp_path):
    _run(tmp_path / "a", tasks="word_problems", limit=10)
    _run(tmp_path / "b", tasks="word_problems", limit=20)
    _run(tmp_path / "c", "--set", "word_problems.max_tokens=99", tasks="word_problems", limit=20)
    text = _export(f"{tmp_path} --format table")
    assert "word_problems: 3 columns, whose values cannot be compared: max_tokens, number" in text
    rows = {row["run"]: row for row in _rows(tmp_path)}
    columns = [name for name in rows["a"] if name.endswith(" value")]
    assert len(columns) == 3
    assert [sum(bool(row[one]) for row in rows.values()) for one in columns] == [1, 1, 1]
    assert "-: not run in this way, or not finished" in text


def test_failed_samples_and_undecided_verdicts_are_marked(tmp_path):
    flags = [
        "--set",
        "launcher.failure_rate=0.3",
        "--set",
        "limits.max_error_rate=1",
        "--set",
        "limits.retry_budget=0",
    ]
    _run(tmp_path / "lossy", *flags, tasks="word_problems", limit=40)
    _run(tmp_path / "sound", tasks="word_problems", limit=40)
    lossy, _ = rows = _rows(tmp_path)
    assert [row["run"] for row in rows] == ["lossy", "sound"]
    failed = int(lossy["word_problems failed"])
    assert failed > 0
    text = _export(f"{tmp_path} --format markdown")
    assert f"f{failed} |" in text
    assert "* f: number of failed samples" in text


@pytest.mark.parametrize("model", ["=1+1|`x`%$_{}#&~^\\<b>", "@org/m", "+m\u202e模"])
def test_a_hostile_name_of_a_model_stays_text(model, tmp_path):
    done = serve_eval(
        f"run --launcher simulated -t word_problems --limit 5 --no-reference -o {tmp_path}/a",
        f"--model={model}",
    )
    assert (tmp_path / "a/report.json").exists(), done.stderr
    [row] = _rows(tmp_path)
    assert row["model"].startswith("'")
    assert row["model"].removeprefix("'") == model.replace("\u202e", "")
    ElementTree.fromstring(_export(f"{tmp_path} --format svg"))
    rows = [line for line in _export(f"{tmp_path} --format markdown").splitlines() if "[" in line]
    assert len(rows) == 1


def test_a_table_is_written_to_a_file(deployments, tmp_path):
    printed = _export(f"{deployments} --format latex")
    told = _export(f"{deployments} --format latex -o {tmp_path}/t.tex")
    assert told.startswith(f" WRITTEN   latex  5 rows in {tmp_path / 't.tex'}\n")
    assert (tmp_path / "t.tex").read_text() == printed
    serve_eval(
        f"runs export {deployments} --format svg -o {tmp_path}/no/t.svg",
        exits=2,
        tells="cannot be written",
    )


def test_options_of_other_formats_are_refused(deployments):
    serve_eval(
        "runs export --format lm-eval",
        *deployments.iterdir(),
        exits=2,
        tells="writes one run, and 5",
    )
    serve_eval(
        f"runs export {deployments} --all --format biochatter",
        exits=2,
        tells="--all is for the formats table",
    )
    unknown = serve_eval(f"runs export {deployments} --format latx")
    assert "Did you mean 'latex'?" in unknown.stderr


@pytest.fixture
def suite(tmp_path):
    """Return a suite of long names with references, a damaged run and one that cannot start."""
    sizes = {"word_problems": 30, "passkey_short": 20}
    serve_eval(
        f"run --launcher simulated -m {MODEL} -o {tmp_path}/first -t",
        ",".join(sizes),
        "--no-reference",
        *(f"--set={name}.num_samples={n}" for name, n in sizes.items()),
        exits=3,
    )
    serve_eval(f"references register {tmp_path}/first --references-dir {tmp_path}/refs", exits=0)
    tasks = ", ".join(f"{name}: {{num_samples: {n}}}" for name, n in sizes.items())
    tasks = ", ".join(f"{{{one}}}" for one in tasks.split(", "))
    names = ("bf16", "fp8-attention-only", "fp8-attention-kv", "nvfp4-mlp-only")
    damages = (0.0, 0.0, 0.1, 0.9)
    runs = "\n".join(
        f"    - {{label: {name}, launcher: {{name: simulated, damage: {damage}}},"
        f" attributes: {{bits: {16 - 4 * i}}}}}"
        for i, (name, damage) in enumerate(zip(names, damages, strict=True))
    )
    lost = "  - {name: lost, launcher: {name: simulated, no_completions: true, no_chat: true}}"
    (tmp_path / "nightly.yaml").write_text(
        f"defaults: {{model: {MODEL}, references_dir: {tmp_path / 'refs'},"
        f" verdict: classic, tasks: [{tasks}]}}\nmatrix:\n  deployment:\n{runs}\nplans:\n{lost}\n"
    )
    return tmp_path / "nightly.yaml"


def test_a_suite_is_readable_at_eighty_columns(suite, tmp_path):
    done = serve_eval(f"run {suite} -o {tmp_path}/out", COLUMNS="80")
    title, header, *lines = done.stdout.splitlines()
    assert "FAIL" in title, done.stderr
    # One table, not blocks of columns, and no column without a figure.
    assert header.split()[:3] == ["verdict", "run", "task"]
    assert "p holm" not in header
    table = lines[:10]
    assert all(len(line) <= 80 for line in (header, *table))
    outcomes = [line.split()[0] for line in table]
    assert outcomes == ["FAIL", "FAIL", "ERROR", "ERROR", *["PASS"] * 6]
    assert lines[10].startswith(" likely ")
    summary = (tmp_path / "out/summary.md").read_text()
    assert "| nvfp4-mlp-only |" in summary
    assert "F: FAIL" in summary


def test_a_run_of_a_suite_without_a_report_is_a_row_that_says_why(suite, tmp_path):
    serve_eval(f"run {suite} -o {tmp_path}/out")
    rows = {row["run"]: row for row in _rows(f"{tmp_path}/out")}
    assert len(rows) == 5
    assert rows["lost"]["passkey_short verdict"] in ("ERROR", "UNSUPPORTED", "INCONCLUSIVE")
    assert rows["lost"]["passkey_short value"] == ""
    assert rows["lost"]["passkey_short no value because"]
    assert rows["nvfp4-mlp-only"]["bits"] == "4"
    one = _rows(f"{tmp_path}/out/runs/bf16")
    assert [row["model"] for row in one] == [MODEL]


def test_an_unfinished_folder_hides_no_finished_run(deployments, tmp_path):
    dead, empty = tmp_path / "dead", tmp_path / "empty"
    _run(dead, tasks="word_problems")
    (dead / "report.json").unlink()
    journal = dead / "samples/word_problems.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:5]))
    empty.mkdir()
    text = " ".join(_export(f"{deployments} {dead} {empty} --format table").split())
    assert f"{dead} is unfinished: answers: word_problems 5 of 12" in text
    assert f"serve-eval run --resume {dead}" in text
    assert f"{empty} contains no finished run" in text
    assert len(_rows(f"{dead} {deployments}")) == 5
    for name in ("latex", "svg"):
        picture = _export(f"{deployments} {dead} --format {name}")
        assert "runs left out: 1" in picture
        assert "serve-eval" not in picture
        assert str(tmp_path) not in picture.replace("\\", "")
    serve_eval(f"runs export {dead} --format table", exits=2, tells="only 1 unfinished")


def test_a_run_that_a_row_shows_is_not_said_to_be_left_out(suite, tmp_path):
    serve_eval(f"run {suite} -o {tmp_path}/out")
    text = " ".join(_export(f"{tmp_path}/out --format table").split())
    assert "left out" not in text
    assert text.count("lost: word_problems, passkey_short: no value: ERROR: http://") == 1
    for name in ("latex", "svg"):
        picture = _export(f"{tmp_path}/out --format {name}").replace("\\", "")
        assert "lost: word_problems, passkey_short: no value: " in picture
        assert "http://127" not in picture


def test_repeats_are_no_samples_and_split_no_column(tmp_path):
    _run(tmp_path / "once", tasks="word_problems")
    _run(tmp_path / "twice", "--repeats", "2", tasks="word_problems")
    alone = _export(f"{tmp_path}/twice --format markdown")
    assert "word\\_problems (n 12 x 2)" in alone
    both = _export(f"{tmp_path} --format table")
    assert "word_problems: each sample was asked 1 time by once; 2 times by twice" in both
    assert "cannot be compared" not in both
    assert len(both.split("n 12")) == 2
    assert both.count(" [") == 2


def test_the_size_of_a_column_is_written_once(tmp_path):
    _run(tmp_path / "a", tasks="word_problems", limit=10)
    _run(tmp_path / "b", tasks="word_problems", limit=20)
    text = _export(f"{tmp_path} --format markdown")
    assert "| word\\_problems (n 10) | word\\_problems (n 20) |" in text


@pytest.fixture(scope="module")
def run(tmp_path_factory, simulated_here):
    """Return a run of which 5 of 20 answers are lost."""
    out = tmp_path_factory.mktemp("runs") / "out"
    asked = "--launcher simulated -m org/m -t word_problems --limit 20"
    serve_eval(f"run --no-reference -o {out} {asked}", exits=3)
    for folder in ("samples", "scores"):
        file = out / folder / "word_problems.jsonl"
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:15]))
    return out


def test_the_files_are_listed_with_their_rows_and_what_was_left_out(run, tmp_path):
    done = serve_eval(
        f"runs export {run} -o {tmp_path} --junit {tmp_path}/junit.xml", COLUMNS="80", exits=0
    )
    first, *rows = done.stdout.splitlines()
    assert first == f" WRITTEN   lm-eval  15 rows in 2 files below {tmp_path / 'org__m'}"
    left = "word_problems: 15 of 20 samples have a score; the others are not exported"
    assert f" warning  {left}" in rows
    [suite] = JUnitXml.fromfile(str(tmp_path / "junit.xml"))
    assert [(case.name, case.result) for case in suite] == [("lm-eval", [])]
    told = json.loads(serve_eval(f"runs export {run} -o {tmp_path} --json").stdout)
    files = {Path(one["file"]): one["rows"] for one in told["result"]["files"]}
    assert sorted(files) == sorted((tmp_path / "org__m").iterdir())
    for file, number in files.items():
        assert file.name in done.stdout
        assert number == (len(file.read_text().splitlines()) if "samples" in file.name else None)
    assert told["warnings"] == [left]


def test_a_table_on_standard_output_is_nothing_but_the_table(run, tmp_path):
    printed = serve_eval(f"runs export {run} --format csv --notify-text {tmp_path}/line").stdout
    [row] = csv.DictReader(printed.splitlines())
    assert row["model"] == "org/m"
    assert (tmp_path / "line").read_text().startswith("WRITTEN csv: 1 row; ")
    told = json.loads(serve_eval(f"runs export {run} --format csv --json").stdout)
    assert told["result"]["rows"] == [row]
    assert told["outcome"] == "WRITTEN"


def test_biochatters_files_have_their_rows(run, tmp_path):
    done = serve_eval(f"runs export {run} --format biochatter -o {tmp_path} --json", exits=0)
    for one in json.loads(done.stdout)["result"]["files"]:
        with Path(one["file"]).open(newline="") as file:
            assert len(list(csv.DictReader(file))) == one["rows"], one
