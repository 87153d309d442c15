"""Test which runs, copies and efforts share a row or a column of a table."""

import csv
import io
import json
import shutil
from dataclasses import replace

import pytest

from serve_eval.report.results_table import DeploymentRow, ResultCell
from serve_eval.schema import VerdictOutcome
from serve_eval.series.cells import add_stars, correct_cells
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


def _run(folder, task, more="", *, n=12):
    done = serve_eval(
        f"run --launcher simulated -m org/m -t {task} --no-reference -o {folder}"
        f" --set={task}.num_samples={n} {more}"
    )
    assert (folder / "report.json").exists(), done.stderr


def _export(*arguments):
    done = serve_eval("runs export", *arguments, COLUMNS="200", exits=0)
    return done.stdout


def _rows(*arguments):
    text = _export(*arguments, "--format", "csv")
    return {row["run"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}


@pytest.fixture
def one(tmp_path):
    """Return a folder with two deployments that were asked for word problems."""
    _run(tmp_path / "one/bf16", "word_problems")
    _run(tmp_path / "one/fp8", "word_problems", "--set=launcher.damage=0.9")
    return tmp_path / "one"


def test_runs_with_other_tasks_join_the_row_of_their_deployment(one, tmp_path):
    _run(tmp_path / "two/bf16", "passkey_short")
    _run(tmp_path / "two/fp8", "passkey_short", "--set=launcher.damage=0.9")
    rows = _rows(one, tmp_path / "two")
    assert sorted(rows) == ["bf16", "fp8"]
    for row in rows.values():
        assert row["word_problems value"]
        assert row["passkey_short value"]
    text = _export(one, tmp_path / "two", "--format", "table")
    assert "no two of which asked the same: bf16, fp8; --all shows each" in " ".join(text.split())
    every = _rows(one, tmp_path / "two", "--all")
    assert sorted(every) == ["one/bf16", "one/fp8", "two/bf16", "two/fp8"]


def test_a_folder_is_named_only_where_two_runs_asked_a_task_alike(one, tmp_path):
    _run(tmp_path / "two/bf16", "word_problems")
    _run(tmp_path / "two/fp8", "passkey_short", "--set=launcher.damage=0.9")
    assert sorted(_rows(one, tmp_path / "two")) == ["fp8", "one/bf16", "two/bf16"]


def test_another_option_of_the_launcher_is_another_deployment(one, tmp_path):
    _run(tmp_path / "two/fp8", "passkey_short", "--set=launcher.damage=0.5")
    assert sorted(_rows(one, tmp_path / "two")) == ["bf16", "one/fp8", "two/fp8"]


@pytest.mark.parametrize("named", ["two", "two/fp8"])
def test_a_subset_is_paired_in_the_row_of_its_deployment(named, one, tmp_path):
    _run(tmp_path / "two/fp8", "word_problems", "--set=launcher.damage=0.9", n=8)
    asked = (one, tmp_path / named, "--differences", "--baseline", "bf16")
    [row] = _rows(*asked).values()
    assert row["run"] == "fp8"
    assert row["word_problems (n 12) difference"]
    assert row["word_problems (n 8) difference"]
    assert row["word_problems (n 8) common prompts"] == "8"


def test_suites_of_the_same_deployments_share_rows(tmp_path):
    for name, task in (("nightly", "word_problems"), ("texts", "passkey_short")):
        (tmp_path / f"{name}.yaml").write_text(
            "defaults: {model: org/m, no_reference: true, launcher: simulated,"
            f" tasks: [{{{task}: {{num_samples: 8}}}}]}}\n"
            "plans:\n  - {name: bf16}\n  - {name: fp8, launcher: {name: simulated, damage: 0.9}}\n"
            "  - {name: lost, launcher: {name: simulated, no_completions: true, no_chat: true}}\n"
        )
        serve_eval(f"run {tmp_path}/{name}.yaml -o {tmp_path}/{name}")
    rows = _rows(tmp_path / "nightly", tmp_path / "texts")
    assert sorted(rows) == ["bf16", "fp8", "lost"]
    assert sorted(_rows(tmp_path)) == ["bf16", "fp8", "lost"]
    for task in ("word_problems", "passkey_short"):
        assert rows["fp8"][f"{task} value"]
        assert rows["lost"][f"{task} verdict"]


SUITE = """
defaults: {model: org/m, launcher: simulated, no_reference: true, limit: 20, repeats: 2,
  preset: qwen3-thinking, protocol: {max_tokens: 64, thinking: null}, tasks: [passkey_short]}
matrix: {effort: [none, high]}
"""


def _export_table_efforts(more=""):
    done = serve_eval(f"runs export --format table {more}", exits=0)
    return " ".join(done.stdout.split())


def test_efforts_are_rows_of_one_column_and_can_be_compared(tmp_path):
    file, out = tmp_path / "s.yaml", tmp_path / "out"
    file.write_text(SUITE)
    serve_eval(f"run {file} -o {out}", exits=3)
    said = _export_table_efforts(out)
    assert "run effort passkey_short n 20 x 2 effort-" in said
    assert "effort-none none " in said
    assert "effort-high high " in said
    assert "cannot be compared" not in said
    assert "not run in this way" not in said
    # Runs that began within one second are in the order of their folders.
    orders = (
        f"rows differ in the effort ({both}), which sets" for both in ("none, high", "high, none")
    )
    assert any(f"{words} temperature, top_p" in said for words in orders)
    apart = _export_table_efforts(f"{out} --differences --baseline effort-none")
    assert "1 test by Holm, two-sided; with repeats on both sides, an interval is of these" in apart


def test_a_setting_of_the_user_keeps_runs_in_columns_of_their_own(tmp_path):
    for effort, temperature in (("none", "0.2"), ("high", "0.3")):
        serve_eval(
            "run --launcher simulated -m org/m -t passkey_short --no-reference --limit 20"
            f" --preset qwen3-thinking --set effort={effort}"
            f" --set passkey_short.temperature={temperature} --max-tokens 64"
            f" --set passkey_short.thinking=null -o {tmp_path}/{effort}",
            exits=3,
        )
    assert (
        "2 columns, whose values cannot be compared: temperature differ"
        in _export_table_efforts(tmp_path)
    )


def _write(file, scorer):
    cases = [
        {"case": f"n{i}", "input": {"prompt": f"What is {i}?"}, "expected": i} for i in range(12)
    ]
    tasks = {"sums": {"scorer": scorer, "cases": cases}, "other": {"scorer": "numeric"}}
    tasks["other"]["cases"] = cases
    file.write_text(json.dumps(tasks))


def test_a_column_says_the_changed_options_of_its_scorer(tmp_path):
    file = tmp_path / "c.json"
    asked = f"run --launcher simulated -m org/m --cases {file} --no-reference"
    _write(file, "numeric")
    serve_eval(f"{asked} -o {tmp_path}/first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    _write(file, {"numeric": {"absolute": 10}})
    serve_eval(f"{asked} -o {tmp_path}/second")
    runs = (tmp_path / "first", tmp_path / "second")
    first, second = csv.DictReader(io.StringIO(_export(*runs, "--format", "csv"), newline=""))
    changed = "cases:sums (scorer numeric.absolute 10)"
    assert first["cases:sums value"]
    assert second[f"{changed} value"] == "100"
    assert (first[f"{changed} value"], second["cases:sums value"]) == ("", "")
    alone = _export(runs[1], "--format", "table")
    note = "cases:sums: scored with other than default options: scorer numeric.absolute 10"
    assert note in alone
    assert "default options" not in _export(runs[0], "--format", "table")


def _cell(p, answered):
    return ResultCell(
        value=60.0,
        interval=None,
        outcome=VerdictOutcome.PASS,
        scored=20,
        planned=20,
        answered=answered,
        difference=-5.0,
        difference_interval=(-8.0, -2.0),
        p=p,
        p_rise=1.0,
        p_rule=p,
        finding="FAIL",
        proven="drop",
    )


def _rows_table_copies(*cells):
    return [DeploymentRow(model="m", attributes={}, cells=[one]) for one in cells]


def test_the_same_answers_in_a_copy_are_one_test():
    run, other = _cell(0.01, "a"), _cell(0.02, "b")
    rows = correct_cells(_rows_table_copies(run, run, other))
    found = [cell for row in rows for cell in row.cells if cell is not None]
    assert [(cell.p_holm, cell.tests) for cell in found] == [(0.02, 2), (0.02, 2), (0.02, 2)]
    unknown = replace(run, answered="")
    [first, *_] = correct_cells(_rows_table_copies(unknown, unknown, other))
    assert first.cells[0].tests == 3
    starred, tests = add_stars(_rows_table_copies(run, run, other))
    assert tests == 2
    shown = [cell.p_table for row in starred for cell in row.cells if cell is not None]
    assert shown == [0.04, 0.04, 0.04]


SUITE_LOST_TASKS = """\
defaults: {model: org/m, no_reference: true}
matrix:
  kind:
    - {label: sound, launcher: {name: simulated, accuracy: 0.9}}
    - {label: dead, base_url: "127.0.0.1:9"}
  tasks: [{word_problems: {num_samples: 30}}, {gsm8k: {num_samples: 7}}]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory, simulated_here):
    """Return the folder of a suite in which one task has no data, and one deployment is dead."""
    top = tmp_path_factory.mktemp("lost")
    (top / "s.yaml").write_text(SUITE_LOST_TASKS)
    done = serve_eval(f"run {top}/s.yaml -o {top}/out -v", COLUMNS="80", exits=4)
    (top / "printed").write_text(done.stdout)
    return top


def test_every_planned_task_has_a_column_and_every_deployment_one_row(made):
    done = serve_eval(f"runs export {made}/out --format csv")
    sound, dead = csv.DictReader(done.stdout.splitlines())
    assert (sound["run"], dead["run"]) == ("sound", "dead")
    assert sound["server"] == "simulator"
    assert [sound["gsm8k verdict"], sound["word_problems scored"]] == ["ERROR", "30"]
    assert "GSM8K was not found" in sound["gsm8k no value because"]
    assert [dead["word_problems verdict"], dead["gsm8k verdict"]] == ["ERROR", "ERROR"]


def test_a_task_that_was_not_asked_has_the_number_of_samples_that_was_planned(made):
    done = serve_eval(f"runs export {made}/out --format csv")
    sound, dead = csv.DictReader(done.stdout.splitlines())
    assert {sound["gsm8k planned"], dead["gsm8k planned"]} == {"7"}
    assert dead["word_problems planned"] == "30"


@pytest.mark.parametrize("to_format", ["table", "markdown", "latex", "svg"])
def test_all_formats_have_the_column(made, to_format):
    text = serve_eval(f"runs export {made}/out --format {to_format}").stdout
    assert "gsm8k" in text
    assert "n 7" in text
    serve_eval(f"runs export {made}/out --format {to_format} --all", exits=0)


def test_the_printed_table_has_it_too(made):
    lines = (made / "printed").read_text().splitlines()
    [head] = [one.strip() for one in lines if "run   " in one and "gsm8k" in one]
    assert "word_problems" in head
    [row] = [one.strip() for one in lines if one.strip().startswith("sound  ")]
    assert row.endswith("- E")


def test_a_task_that_was_planned_with_other_options_has_a_column_of_its_own(tmp_path):
    plans = "".join(
        f"  - {{name: {name}, {where}, tasks: [{{word_problems: {{num_samples: {n}}}}}]}}\n"
        for name, where, n in (
            ("sound", "launcher: {name: simulated}", 30),
            ("alike", "base_url: '127.0.0.1:9'", 30),
            ("other", "base_url: '127.0.0.1:9'", 31),
        )
    )
    (tmp_path / "s.yaml").write_text(
        f"defaults: {{model: org/m, no_reference: true}}\nplans:\n{plans}"
    )
    serve_eval(f"run {tmp_path}/s.yaml -o {tmp_path}/out", exits=4)
    done = serve_eval(f"runs export {tmp_path}/out --format csv")
    rows = {row["run"]: row for row in csv.DictReader(done.stdout.splitlines())}
    assert rows["alike"]["word_problems planned"] == "30"
    assert rows["other"]["word_problems planned"] == ""
    assert rows["other"]["word_problems (num_samples 31) planned"] == "31"
