"""Test the line of each command and its reasons, plain wherever they are shown."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from junitparser import JUnitXml

from serve_eval.report.results_table import ResultCell
from serve_eval.schema import Metric, SuiteReport, SuiteRunReport, VerdictOutcome
from serve_eval.workflows.collect.document import CollectedRow, write_csv
from serve_eval.workflows.suite.document import list_run_warnings
from tests.cli.command import in_a_process, serve_eval
from tests.standin.deployments import free_port

pytestmark = pytest.mark.usefixtures("simulated_here")

FIGURES = r"\d+\.\d against \d+\.\d \((drop|gain) \d+\.\d \[-?\d+\.\d, -?\d+\.\d\]\)"
COUNTS = "60 asked, 0 failed, 0 repaired"


def _plan(folder, name, accuracy, **more):
    file = folder / f"{name}.yaml"
    plan = {
        "model": "embedded",
        "launcher": {"simulated": {"accuracy": accuracy, **more}},
        "tasks": [{"word_problems": {"num_samples": 60}}],
    }
    file.write_text(json.dumps(plan))
    return file


def _read_everywhere(folder, line_file, stderr):
    """Return the line, which must be the same at all places."""
    line = line_file.read_text().removesuffix("\n")
    assert "\n" not in line
    summary = (folder / "summary.md").read_text().splitlines()[0]
    assert re.sub(r"\\([\[\]_~<>])", r"\1", summary) == line
    cases = [case for suite in JUnitXml.fromfile(str(folder / "junit.xml")) for case in suite]
    bad = [case for case in cases if case.result]
    if bad:
        assert line in [str(case.result[0].message) for case in bad]
        assert all(case.result[0].text for case in bad)
        assert line in [one.rpartition("::")[2] for one in stderr.splitlines() if "::" in one]
    return line


@pytest.mark.parametrize(
    ("accuracy", "line"),
    [
        (0.85, rf"PASS word_problems embedded: {FIGURES}; {COUNTS}; \S*out"),
        (0.2, rf"FAIL word_problems embedded: {FIGURES}; {COUNTS}(; likely: .+)?; \S*out"),
    ],
)
def test_a_run_says_the_same_line_everywhere(tmp_path, accuracy, line):
    out, file = tmp_path / "out", tmp_path / "line"
    done = serve_eval(
        f"run -o {out} --notify-text {file}", _plan(tmp_path, "p", accuracy), GITHUB_ACTIONS="true"
    )
    said = _read_everywhere(out, file, done.stderr)
    assert re.fullmatch(line, said), said
    again = serve_eval(f"judge {out} --notify-text -")
    assert again.stdout.splitlines()[-1] == said


def test_a_comparison_gives_figures_and_diagnose_gives_the_same(tmp_path):
    out, file = tmp_path / "out", tmp_path / "line"
    a, b = _plan(tmp_path, "a", 0.9), _plan(tmp_path, "b", 0.3)
    done = serve_eval(
        f"compare {a} {b} --self 0 -o {out} --notify-text {file}", GITHUB_ACTIONS="true", exits=1
    )
    said = _read_everywhere(out, file, done.stderr)
    figures = FIGURES.replace(" against ", " against A ")
    assert re.match(rf"FAIL word_problems embedded: B {figures}; {COUNTS}; likely: ", said), said
    last = serve_eval(f"diagnose {out} --notify-text -").stdout.splitlines()[-1]
    assert said == last


def test_a_suite_names_its_worst_task_and_counts_the_others(tmp_path):
    for name, accuracy in (("sound", 0.9), ("damaged", 0.2)):
        _plan(tmp_path, name, accuracy)
    _plan(tmp_path, "dying", 0.9, crash_after=20)
    runs = [{"name": one, "plan": f"{one}.yaml"} for one in ("sound", "dying", "damaged")]
    (tmp_path / "suite.yaml").write_text(json.dumps({"name": "night", "plans": runs}))
    out, file = tmp_path / "out", tmp_path / "line"
    done = serve_eval(
        f"run {tmp_path}/suite.yaml -o {out} --notify-text {file}", GITHUB_ACTIONS="true"
    )
    said = _read_everywhere(out, file, done.stderr)
    assert re.match(rf"FAIL damaged/word_problems embedded: {FIGURES}; 0 failed, 0 rep", said), said
    assert f"; of 3 tasks: 1 FAIL, 1 ERROR, 1 PASS; {out}" in said
    alone = serve_eval(f"judge {out}/runs/damaged --notify-text -").stdout
    drop = re.search(r"\(drop .*?\)", said)
    assert drop[0] in alone, "a suite and its run say the same interval"
    table = serve_eval(f"runs export {out} --format csv").stdout
    row = next(
        one
        for one in csv.DictReader(io.StringIO(table))
        if "runs/damaged" in one["word_problems run"]
    )
    low, high = (float(row[f"word_problems difference {end}"]) for end in ("low", "high"))
    assert f"[{-high:.1f}, {-low:.1f}]" in drop[0]
    assert (row["word_problems rule"], float(row["word_problems p"]) < 0.01) == ("paired", True)
    told = serve_eval(f"diagnose {out}").stdout
    first, *rest = told.splitlines()
    assert first == " FAIL   suite night: 1 FAIL, 1 ERROR, 1 PASS"
    assert re.match(r" FAIL +damaged/word_problems ", next(x for x in rest if " damaged/" in x))


def test_load_has_files_for_ci(tmp_path):
    out, file = tmp_path / "out", tmp_path / "line"
    plan = _plan(tmp_path, "p", 0.8)
    done = serve_eval(f"check load {plan} --concurrency 1,8 -o {out} --notify-text {file}", exits=0)
    said = _read_everywhere(out, file, done.stderr)
    assert re.fullmatch(
        r"PASS word_problems embedded http://\S+: (\d+\.\d) at 8 in flight against \1 at 1"
        r" \(drop 0\.0 \[-\d\.\d, \d\.\d\]\); 60 prompts at each load, 0 failed; \S*out",
        said,
    ), said


def test_merge_and_rescore_say_a_line(tmp_path):
    plan, shards = _plan(tmp_path, "p", 0.9), [tmp_path / "1", tmp_path / "2"]
    for number, shard in enumerate(shards, 1):
        serve_eval(f"run {plan} --shard {number}/2 -o {shard}")
    out, file = tmp_path / "out", tmp_path / "line"
    done = serve_eval(f"runs merge -o {out} --notify-text {file}", *shards, exits=0)
    assert _read_everywhere(out, file, done.stderr).startswith("PASS word_problems embedded: ")
    again = serve_eval(f"judge --rescore {out} --notify-text -").stdout.splitlines()[-1]
    assert re.fullmatch(
        r"UNCHANGED rescore word_problems: (\S+) against \1; 60 of 60 scored, 0 changed.*", again
    ), again


@pytest.mark.parametrize("command", ["run", "compare", "check load"])
def test_a_server_that_dies_is_an_error_with_its_cause(tmp_path, command):
    out, file = tmp_path / "out", tmp_path / "line"
    sound, dying = _plan(tmp_path, "a", 0.9), _plan(tmp_path, "b", 0.9, crash_after=20)
    words = {"run": [dying], "compare": [sound, dying]}
    words["check load"] = [dying, "--concurrency", "1,8"]
    done = serve_eval(
        *command.split(),
        *words[command],
        "-o",
        out,
        "--notify-text",
        file,
        GITHUB_ACTIONS="true",
        exits=4,
    )
    said = _read_everywhere(out, file, done.stderr)
    assert said.startswith(f"ERROR {command} ")
    assert ": no result; the server ended with exit code 1: crashing after 20 requests" in said
    assert said.endswith(f"; {out}")


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [
        ("run", ["--base-url", "{dead}", "-m", "embedded", "--tasks", "word_problems"], 4),
        ("run", ["--base-url", "{dead}", "-m", "m", "--tasks", "word_problems"], 3),
        ("run", ["missing.yaml"], 2),
        ("compare", ["{dead}", "{dead}x", "--tasks", "word_problems"], 2),
        ("verify", ["{dead}", "localhost:1"], 4),
        ("check load", ["{dead}", "--tasks", "word_problems"], 4),
        ("check tools", ["{dead}"], 4),
        ("watch", ["{dead}"], 4),
        ("runs merge", ["missing"], 2),
        ("judge", ["--rescore", "missing"], 2),
        ("judge", ["missing"], 2),
    ],
)
def test_a_command_that_never_starts_still_says_why(tmp_path, monkeypatch, command, words, code):
    monkeypatch.chdir(tmp_path)
    dead = f"127.0.0.1:{free_port()}"
    step = tmp_path / "step.md"
    done = serve_eval(
        *command.split(), *(word.format(dead=dead) for word in words), "--notify-text", "line",
        GITHUB_STEP_SUMMARY=str(step), GITHUB_ACTIONS="true", exits=code
    )  # fmt: skip
    said = Path("line").read_text().removesuffix("\n")
    assert said.startswith(f"{'INCONCLUSIVE' if code == 3 else 'ERROR'} {command} ")
    assert ": no result; " in said
    assert re.sub(r"\\(.)", r"\1", step.read_text().splitlines()[0]) == said
    assert f"::{said}\n" in done.stderr


def test_the_line_of_a_refused_folder_has_one_colon_before_the_difference(tmp_path):
    how = f"--no-reference -o {tmp_path}/out --notify-text -"
    serve_eval(f"run {how}", _plan(tmp_path, "p", 0.9))
    other = serve_eval(
        f"run --set word_problems.num_samples=9 {how}", _plan(tmp_path, "p", 0.9), exits=2
    )
    assert re.search(r"holds another run: \w", other.stdout), other.stdout


def test_junit_of_a_run_that_never_starts_is_an_error(tmp_path):
    file = tmp_path / "junit.xml"
    serve_eval(f"run {tmp_path}/missing.yaml --junit {file}", exits=2)
    read = JUnitXml.fromfile(str(file))
    assert (read.tests, read.errors) == (1, 1)


def test_a_refused_folder_stays_as_it_is(tmp_path):
    (tmp_path / "mine").write_text("x")
    serve_eval(f"run -o {tmp_path}", _plan(tmp_path.parent, "p", 0.9), exits=2)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_link_is_that_of_the_job_and_secrets_are_hidden(tmp_path):
    secret = "sk-0123456789abcdef"
    done = serve_eval(
        "run --tasks word_problems --notify-text - --base-url",
        f"http://127.0.0.1:{free_port()}",
        "--model",
        f"m-{secret}\x1b[31m",
        CI_JOB_URL="https://ci.example/job/7",
        SOME_API_KEY=secret,
    )
    line = done.stdout.splitlines()[-1]
    assert line.endswith("; https://ci.example/job/7")
    assert secret not in done.stdout
    assert "\x1b" not in done.stdout


def test_json_and_the_line_do_not_share_standard_output(tmp_path):
    serve_eval(
        "run --json --notify-text -",
        _plan(tmp_path, "p", 0.9),
        exits=2,
        tells="standard output holds JSON already",
    )


def test_an_interrupted_run_says_so(tmp_path):
    plan = _plan(tmp_path, "slow", 0.9, latency_s=30.0)
    file = tmp_path / "line"
    in_a_process(
        f"run {plan} -o {tmp_path}/out --notify-text {file}",
        shell=f"& until [ -e {tmp_path}/out/plan.json ]; do sleep .2; done; kill -TERM $!; wait $!",
        exits=130,
    )
    assert file.read_text().startswith(f"INTERRUPTED run {plan}: no result; ended by a signal")


def test_a_pass_that_no_value_could_have_failed_says_so(tmp_path):
    plan = _plan(tmp_path, "p", 0.9)
    done = serve_eval(
        f"run {plan} --samples test-6,test-26 --verdict classic -o {tmp_path}/out --notify-text -",
        exits=0,
    )
    assert "; no value could FAIL; 2 asked" in done.stdout.splitlines()[-1], done.stdout


@pytest.fixture(scope="module")
def suite(tmp_path_factory, simulated_here):
    """Return a suite with a server that never starts, one that ends, and three damaged ones."""
    top = tmp_path_factory.mktemp("plain")
    serve_eval(
        "run --launcher simulated -m org/m -t word_problems --no-reference"
        f" --set=word_problems.num_samples=40 -o {top}/first",
        exits=3,
    )
    serve_eval(f"references register {top}/first --references-dir {top}/refs")
    (top / "suite.yaml").write_text(
        f"defaults: {{model: org/m, references_dir: {top / 'refs'}, launcher: simulated,"
        " tasks: [{word_problems: {num_samples: 40}}]}\nplans:\n  - {name: bf16}\n"
        "  - {name: a, launcher: {name: simulated, damage: 0.1}}\n"
        "  - {name: b, launcher: {name: simulated, damage: 0.2}}\n"
        "  - {name: dies, launcher: {name: simulated, crash_after: 20}}\n"
        f"  - {{name: nostart, launcher: {{name: llama_cpp, command: 'false'}}}}\n"
    )
    serve_eval(f"run {top}/suite.yaml -o {top}/out")
    return top / "out"


def _export(suite, name):
    done = serve_eval(f"runs export {suite} --format {name}", COLUMNS="300", exits=0)
    return done.stdout


@pytest.mark.parametrize("name", ["latex", "svg"])
def test_a_paper_says_how_a_server_failed(name, suite):
    text = " ".join(_export(suite, name).replace("\\", "").split())
    assert "no value: ERROR: the server did not start" in text
    assert "no value: ERROR: the server ended after " in text
    assert " of 40 answers" in text
    assert "ERROR: embedded" not in text


def test_a_note_of_a_text_has_one_line_and_the_number_of_answers(suite):
    lines = _export(suite, "table").splitlines()
    [note] = [line for line in lines if line.startswith("* dies: ")]
    assert note.endswith(" of 40 answers)")
    assert "the server ended with exit code" in note
    assert not any("crashing after" in line for line in lines)


@pytest.mark.parametrize("file", ["summary.md", "report.html"])
def test_each_report_of_a_suite_names_the_runs_launched_otherwise(file, suite):
    text = (suite / file).read_text().replace("\\", "")
    said = "launched otherwise: a (launcher simulated, damage 0.1), b (launcher simulated, damage"
    assert text.count(said) == 1
    assert "this run is at" not in text


def test_warnings_of_several_runs_name_them():
    def run(name, *warnings):
        return SuiteRunReport(
            name=name, attributes={}, folder=name, kept=False, error=None, warnings=warnings
        )

    at = "the reference was taken at launcher x; this run is at launcher x, damage "
    runs = (run("a", f"t: {at}1", f"u: {at}1"), run("b", "slow", f"t: {at}2"), run("c", "slow"))
    report = SuiteReport(
        schema_version=1, name="s", verdict="PASS", exit_code=0, alpha=0.05, runs=runs, rows=(),
        waivers=(), started_at="", wall_s=0.0,
    )  # fmt: skip
    assert list(list_run_warnings(report)) == [
        "the reference was taken at launcher x; launched otherwise: a (launcher x, damage 1),"
        " b (launcher x, damage 2)",
        "b, c: slow",
    ]


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("embedded: /nowhere has no file", "ERROR"),
        ("the endpoint is gone: http://127.0.0.1:9", "ERROR: the endpoint is gone"),
        ("it ended\n  a line of a log\n  another", "ERROR: it ended"),
    ],
)
def test_a_reason_is_not_cut_to_a_bare_word(reason, said):
    cell = ResultCell(
        value=None, interval=None, outcome=VerdictOutcome.ERROR, scored=0, planned=9, reason=reason
    )
    assert list(cell.explain(Metric(), plain=True)) == [f"no value: {said}"]


def test_dust_of_floats_is_no_figure_and_a_small_p_is_one():
    row = CollectedRow(source="a", kind="run", value=5.2e-16, low=-3e-17, p=1.5e-14)
    [read] = csv.DictReader(io.StringIO(write_csv([row])))
    assert (read["value"], read["low"], read["p"]) == ("0", "0", "1.5e-14")


def test_a_table_as_csv_has_no_dust(suite):
    for row in csv.DictReader(io.StringIO(_export(suite, "csv"), newline="")):
        for name in ("value", "low", "difference", "difference low", "difference high"):
            told = row[f"word_problems {name}"]
            assert "e-" not in told
