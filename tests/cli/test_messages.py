"""Test that commands tell each reason once, before anything starts, and little with --quiet."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.workflows.smoke.server import Quirks, create

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_an_unsupported_run_is_no_reference_and_a_resumed_one_would_be_none():
    run = serve_eval(
        "run --launcher simulated --set=launcher.no_completions=true -m org/m"
        " -t word_problems,passkey_short --no-reference -o run"
    )
    assert run.stdout.count("the endpoint lacks completions") == 1, run.stdout
    assert " why      word_problems and 1 more: " in run.stdout
    done = serve_eval(
        "references register run --references-dir refs",
        exits=2,
        tells="word_problems is UNSUPPORTED there",
    )
    assert "Use chat (apply_chat_template: true)" in done.stderr
    assert "resume" not in done.stderr
    assert not Path("refs").exists()


def test_what_stopped_several_runs_is_told_once():
    Path("s.yaml").write_text(
        "defaults: {model: org/m, no_reference: true}\nmatrix:\n  kind:\n"
        "    - {label: sound, launcher: {name: simulated}}\n"
        "    - {label: dead, base_url: '127.0.0.1:9'}\n"
        "  tasks: [{word_problems: {num_samples: 30}}, {passkey_short: {}}]\n"
    )
    done = serve_eval("run s.yaml -o out", exits=4)
    assert done.stdout.count("nothing listens on that port") == 1, done.stdout
    assert "dead_word_problems/word_problems and 1 more: EndpointError" in done.stdout
    table = serve_eval("runs export out --format table")
    assert table.stdout.count("nothing listens on that port") == 1, table.stdout


GOOD = "{label: good, launcher: simulated}"
BAD = {
    "launcher": ("{label: bad, launcher: simulatd}", "unknown launcher 'simulatd'"),
    "option": ("{label: bad, launcher: {name: simulated, acuracy: 1}}", "launcher.acuracy"),
    "value": ("{label: bad, launcher: {name: simulated, accuracy: 80}}", "is not between 0 and 1"),
    "task": ("{label: bad, launcher: simulated, tasks: [pasky_short]}", "'pasky_short'"),
    "task option": (
        "{label: bad, launcher: simulated, tasks: [{passkey_short: {sentence: 5}}]}",
        "passkey_short.sentence",
    ),
    "gpus": (
        "{label: bad, launcher: {name: trtllm_disaggregated, gpus: [0]}}",
        "2 GPUs are needed",
    ),
}


def _write(*runs):
    lines = "".join(f"    - {run}\n" for run in runs)
    Path("s.yaml").write_text(
        "defaults: {model: m, no_reference: true, tasks: [passkey_short]}\n"
        f"matrix:\n  state:\n{lines}"
    )


@pytest.mark.parametrize("kind", BAD)
def test_a_wrong_run_is_named_beside_the_sound_ones_and_nothing_starts(kind):
    run, said = BAD[kind]
    _write(run, GOOD, run.replace("label: bad", "label: worse"))
    dry = serve_eval(
        "run s.yaml --dry-run -o out",
        exits=2,
        prints="  good: default, verdict by reference, state good",
    )
    assert "passkey_short: 110 requests" in dry.stdout
    assert "3 runs, 2 would be refused" in dry.stdout
    for name in ("bad", "worse"):
        [listed] = [line for line in dry.stdout.splitlines() if line.startswith(f"  {name}")]
        assert f"state {name}" in listed
        assert name in dry.stderr
    assert said in dry.stdout
    assert said in dry.stderr
    done = serve_eval("run s.yaml -o out")
    assert (done.returncode, said in done.stderr, done.stdout) == (2, True, "")
    assert "run bad" in done.stderr or "runs bad, worse" in done.stderr
    assert "worse" in done.stderr
    assert not Path("out").exists()


def test_a_dry_run_as_json_has_the_runs_that_are_wrong():
    _write(BAD["option"][0], BAD["value"][0].replace("bad", "high"), GOOD)
    done = serve_eval("run s.yaml --dry-run --json")
    told = json.loads(done.stdout)
    [refused] = told["refused"]
    assert (done.returncode, refused["name"], refused["attributes"]) == (2, "bad", {"state": "bad"})
    runs = {run["name"]: run for server in told["servers"] for run in server["runs"]}
    assert [len(runs[name]["problems"]) for name in ("good", "high")] == [0, 1]
    assert runs["high"]["tasks"][0]["requests"] == 110


def test_what_this_machine_lacks_is_told_first_and_stops_only_its_own_run():
    _write(
        "{label: nodata, launcher: simulated, tasks: [mmlu]}",
        "{label: noprogram, launcher: {name: vllm, command: no-such-server}}",
        GOOD,
    )
    dry = serve_eval(
        "run s.yaml --dry-run", exits=2, prints="refused: the data set MMLU was not found"
    )
    assert "note: no-such-server is not on PATH here" in dry.stdout
    done = serve_eval("run s.yaml -o out")
    first = done.stderr.index("run 1 of 3")
    for warning in (
        "warning: run nodata cannot be asked or judged as a whole: the data set MMLU",
        "warning: run noprogram cannot be asked or judged as a whole: no-such-server is not on",
    ):
        assert done.stderr.index(warning) < first
    report = read_json("out/suite_report.json")
    rows = {row["run"]: row["outcome"] for row in report["rows"]}
    assert rows == {"nodata": "ERROR", "noprogram": "ERROR", "good": "NO REFERENCE"}
    assert done.returncode == 2


RUN = "run --launcher simulated --model m --limit 20 --no-reference"


@pytest.mark.parametrize("tasks", ["passkey_short", "passkey_short,word_problems"])
def test_a_run_prints_its_first_line_and_nothing_else(tasks):
    done = serve_eval(f"{RUN} -t {tasks} -q -o out")
    assert (done.returncode, done.stderr) == (3, "")
    [line] = done.stdout.splitlines()
    assert "NO REFERENCE" in line
    whole = serve_eval("judge out").stdout
    assert whole.startswith(line)
    a, b = "out", "out2"
    serve_eval(f"{RUN} -t {tasks} -q -o {b} --set launcher.accuracy=0.5")
    compared = serve_eval(f"compare {a} {b} -q -o compared")
    assert compared.stderr == ""
    assert len(compared.stdout.splitlines()) == 1


def test_json_stays_whole():
    done = serve_eval(f"{RUN} -t passkey_short -q --json -o out")
    report = read_json("out/report.json")
    assert (done.stderr, json.loads(done.stdout)["result"]) == ("", report)


def test_errors_are_printed_with_their_hint():
    done = serve_eval("run --base-url 127.0.0.1:9 -t passkey_short -m m -q", exits=3)
    assert done.stderr.startswith("error: passkey_short: there is no reference file")
    assert "serve-eval references take" in done.stderr
    again = serve_eval("run -t passkey_short --no-reference -m m")
    assert again.stderr.startswith("serve-eval: "), "the next command is not quiet"


def test_a_suite_prints_its_verdict():
    plan = "launcher: simulated, model: m, tasks: [passkey_short], limit: 5, no_reference: true"
    Path("suite.yaml").write_text(f"name: s\nplans:\n  - {{{plan}, name: a}}\n")
    done = serve_eval("run suite.yaml -q -o out")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == [done.stdout.strip("\n")]
    assert "suite s: 1 run" in done.stdout


def test_a_smoke_test_prints_its_counts():
    with create(Quirks()).serve_in_thread() as url:
        done = serve_eval(f"smoke {url} -q")
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    assert re.fullmatch(r" PASS   smoke test  \d+ passed", line)
