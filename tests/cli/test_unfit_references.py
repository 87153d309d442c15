"""Test references of few samples, wrong servers, red runs or other sampling seeds."""

import csv
import io
import re
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

SIMULATED = ["--launcher", "simulated", "--model", "my-org/m", "-t", "word_problems"]
FEW = "10 of 500 samples: detects only drops of 55.6 points or more"
NO_ADDRESS = "base_url: the plan names no endpoint: add base_url: host:port"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _right(share):
    return ["--set", f"launcher.accuracy={share}"]


def _take(*more):
    few = ["--set", "word_problems.num_samples=10", "--references-dir", "tiny"]
    return ["references", "take", *SIMULATED, *_right(1.0), *few, *more]


def test_a_reference_of_ten_samples_does_not_fail_a_run_of_all(tmp_path):
    taken = serve_eval(
        *_take("--runs", "1", "-o", "out"), exits=0, prints="the mean of 1 run of 10 samples\n"
    )
    assert f" warning  {FEW}" in taken.stdout
    assert "1 of 3 runs: more runs would make the reference less noisy" in taken.stdout
    assert "references take: launcher simulated, 1 run, " in taken.stderr
    own = "--model my-org/m --references-dir tiny"
    shown = serve_eval(f"references show word_problems {own}")
    assert f" warning  {FEW}" in shown.stdout
    checked = serve_eval("references check tiny -v")
    assert (checked.returncode, checked.stdout.count("1 run of 10 samples")) == (0, 1)
    assert f"my-org/m: {FEW}" in checked.stdout

    run = ["run", *SIMULATED, "--references-dir", "tiny"]
    done = serve_eval(*run, *_right(0.9), "-o", "sound", "--notify-text", "line.txt", exits=0)
    said = " ".join(done.stdout.split())
    assert "the reference has 10 of these 500 samples" in said
    assert "uncertain by ±31.0 points, and the run is judged with n = 10" in said
    assert "detects only drops of 55.6 points or more" in said
    line = Path("line.txt").read_text()
    assert float(line.split("[")[1].split(",")[0]) < 0.0, line  # no drop is proven
    report = read_json(tmp_path / "sound/report.json")
    assert report["tasks"][0]["verdict"]["num_samples"] == 10
    of_the_test = serve_eval("judge sound -v").stdout
    assert "the test uses the n of the reference, 10; the run has 500" in of_the_test
    serve_eval(*run, *_right(0.2), "-o", "broken", exits=1)

    serve_eval(
        "references register broken --references-dir red",
        exits=0,
        prints="broken was FAIL against 100.000",
    )


def test_a_suite_widens_the_interval_by_the_reference_too(tmp_path):
    serve_eval(*_take("--runs", "1", "-o", "out"), exits=0)
    (tmp_path / "s.yaml").write_text(
        "name: s\nplans:\n  - {name: a, launcher: {name: simulated, accuracy: 0.9},"
        " model: my-org/m, tasks: [word_problems], references_dir: tiny}\n"
    )
    serve_eval("run s.yaml -o s --notify-text line.txt", exits=0)
    line = Path("line.txt").read_text()
    assert "(drop " in line
    assert float(line.split("[")[1].split(",")[0]) < 0.0, line


@pytest.mark.parametrize(
    "command",
    [
        "references take plan.yaml",
        "check load plan.yaml",
        "check invariants plan.yaml",
        "check tools plan.yaml",
        "compare plan.yaml 127.0.0.1:9",
        "compare 127.0.0.1:9 plan.yaml",
        "verify 127.0.0.1:9 plan.yaml",
        "bisect --good plan.yaml --bad plan.yaml",
        "run suite.yaml --dry-run",
    ],
)
def test_a_plan_without_an_address_is_refused_by_every_command_that_asks_its_endpoint(
    command,
):
    plan = "model: m\ntasks: [word_problems]\n"
    Path("plan.yaml").write_text(plan)
    Path("suite.yaml").write_text("name: s\nplans: [{name: a, model: m, tasks: [word_problems]}]\n")
    serve_eval(*command.split(), exits=2, tells=NO_ADDRESS)


def _endpoint(done_stderr):
    return done_stderr.partition("references take: endpoint ")[2].partition(",")[0]


@pytest.mark.parametrize(
    ("words", "variables", "asked"),
    [
        ("plan.yaml --base-url 127.0.0.1:9", {}, "http://127.0.0.1:9/v1"),
        ("plan.yaml", {"SERVE_EVAL_BASE_URL": "127.0.0.1:9"}, "http://127.0.0.1:9/v1"),
        ("plan.yaml", {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, "http://127.0.0.1:9/v1"),
        ("own.yaml", {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}, "http://127.0.0.1:7/v1"),
        ("own.yaml", {"SERVE_EVAL_BASE_URL": "127.0.0.1:9"}, "http://127.0.0.1:9/v1"),
        (
            "127.0.0.1:7 -t word_problems --model m",
            {"SERVE_EVAL_BASE_URL": "127.0.0.1:9"},
            "http://127.0.0.1:7/v1",
        ),
        ("--base-url 127.0.0.1:9 -t word_problems --model m", {}, "http://127.0.0.1:9/v1"),
    ],
)
def test_the_address_of_a_reference_is_the_one_that_is_given_and_is_said_first(
    words, variables, asked
):
    plan = "model: m\ntasks: [word_problems]\n"
    Path("plan.yaml").write_text(plan)
    Path("own.yaml").write_text(f"{plan}base_url: 127.0.0.1:7\n")
    shared = "--runs 0 -o out"  # refused before anything is sent
    done = serve_eval(f"references take {shared}", *words.split(), **variables)
    assert _endpoint(done.stderr) == asked, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("127.0.0.1:9 --limit 20", "a reference asks all samples of its tasks"),
        ("127.0.0.1:9 --samples a,b", "a reference asks all samples of its tasks"),
        ("127.0.0.1:9 --shard 1/2", "a reference asks all samples of its tasks"),
        ("127.0.0.1:9 --base-url 127.0.0.1:8", "the endpoint is named twice"),
        ("127.0.0.1:9 --set base_url=127.0.0.1:8", "the endpoint is named twice: 127.0.0.1:9 and"),
        ("127.0.0.1:9 --set limit=20", "a reference asks all samples of its tasks"),
        ("127.0.0.1:9 --set samples=a,b", "a reference asks all samples of its tasks"),
        ("127.0.0.1:9 --set shard=1/2", "a reference asks all samples of its tasks"),
        ("127.0.0.1:9 --set tokens=3", "NAME is a task of this run, launcher or"),
        ("127.0.0.1:9 --set =3", "expected NAME.OPTION=VALUE"),
    ],
)
def test_what_a_reference_cannot_take_is_refused_with_the_reason(words, said):
    done = serve_eval("references take -t word_problems", *words.split(), exits=2, tells=said)
    assert "Did you mean" not in done.stderr


ASKED = ["--launcher", "simulated", "--model", "org/m", "-t", "passkey_short"]
HOT = ["--set", "passkey_short.temperature=0.8"]


def _take_reference_seeds(*more, runs="3", varied=True):
    words = [*ASKED, *HOT, *(["--set", "launcher.varied=true"] if varied else []), *more]
    done = serve_eval(f"references take --runs {runs} -o taken", *words, exits=0)
    return done.stderr + done.stdout


def _run(folder, *more):
    done = serve_eval(f"run --references-dir my-references -o {folder}", *ASKED, *HOT, *more)
    return done.returncode, done.stdout + done.stderr


def _report(folder):
    [task] = read_json(Path(folder, "report.json"))["tasks"]
    assert isinstance(task, dict)
    return task


@pytest.mark.parametrize("seeds", ["sampling_seed: [1, 2]", "protocol: [{seed: 1}, {seed: 2}]"])
def test_a_reference_without_a_seed_judges_seeded_runs_with_a_note(seeds):
    assert "one_draw" not in _take_reference_seeds()
    Path("s.yaml").write_text(
        "defaults: {model: org/m, references_dir: my-references, launcher: simulated,\n"
        f"  tasks: [{{passkey_short: {{temperature: 0.8}}}}]}}\nmatrix: {{{seeds}}}\n"
    )
    dry = serve_eval("run s.yaml --dry-run")
    assert (dry.returncode, dry.stderr) == (0, "")
    assert "note: sampling seed 2 here and none with the reference: a seed is a draw" in dry.stdout
    serve_eval("run s.yaml -o out", exits=0)
    rows = read_json("out/suite_report.json")["rows"]
    assert [row["outcome"] for row in rows] == ["PASS", "PASS"]


def test_a_seeded_reference_refuses_another_seed_and_says_how_to_compare():
    told = _take_reference_seeds("--set", "protocol.seed=1", runs="1")
    assert "one_draw" not in told
    for more in (["--set", "protocol.seed=2"], []):
        code, said = _run("out", *more)
        assert code == 3
        assert "seed is " in said
        offered = said.index("--allow-mismatch seed, or in a plan: allow_mismatch: [seed]")
        take = next(line for line in said.splitlines() if "references take" in line)
        assert offered < said.index(take)
        assert not re.findall("seed=|--sampling-seed", take)
    code, said = _run("out", "--set", "protocol.seed=2", "--allow-mismatch", "seed")
    assert (code, _report("out")["verdict"]["outcome"]) == (0, "PASS"), said
    assert _run("same", "--set", "protocol.seed=1")[0] == 0


def test_at_temperature_0_no_seed_refuses_a_reference():
    cold = ["--set", "passkey_short.temperature=0"]
    told = _take_reference_seeds(*cold, "--set", "protocol.seed=1", varied=False)
    assert "one_draw" not in told
    code, said = _run("out", *cold, "--set", "protocol.seed=2")
    assert code == 0, said
    assert "at temperature 0 a seed draws nothing" in said


def test_the_command_that_takes_a_missing_reference_draws_anew():
    Path("my-references").mkdir()
    for more in (["--set", "protocol.seed=7"], ["--set", "passkey_short.seed=7"]):
        code, said = _run("out", *more)
        assert code == 3
        [take] = [line.strip() for line in said.splitlines() if "references take" in line]
        assert not re.findall("seed=|--sampling-seed", take)
        assert "passkey_short.temperature=0.8" in take


def test_runs_that_are_one_draw_are_named_before_and_after_they_are_asked():
    told = _take_reference_seeds("--set", "protocol.seed=7")
    said = "one_draw: each of the 3 runs has sampling seed 7"
    assert told.count(said) == 2
    assert " seeds    sampling seed 7 in each of 3 runs\n" in told
    assert told.index(said) < told.index(" taken at ")
    again = serve_eval(
        "references register --references-dir again", *(f"taken/run_{k}" for k in (1, 2))
    )
    assert "one_draw: each of the 2 runs has sampling seed 7" in again.stdout
    serve_eval("run --set protocol.seed=7 --repeats 2 --no-reference -o r", *ASKED, *HOT, exits=3)
    one = serve_eval("references register r --references-dir one", exits=0)
    assert "one_draw" not in one.stdout
    assert "sampling seed 7, and the 2 repeats have seeds of their own" in one.stdout


def test_runs_of_a_server_that_repeats_its_replies_are_one_draw():
    told = _take_reference_seeds(varied=False)
    assert "one_draw: the answers of the 3 runs to each of 110 prompts are the same text" in told


def test_collect_has_the_sampling_seed():
    _run("runs/a", "--no-reference", "--references-dir", ".", "--set", "protocol.seed=5")
    _run("runs/b", "--no-reference", "--references-dir", ".")
    done = serve_eval("runs table runs")
    rows = list(csv.DictReader(io.StringIO(done.stdout, newline="")))
    assert [row["sampling_seed"] for row in rows] == ["5", ""]


def test_a_missing_folder_of_references_has_the_command_that_makes_it():
    code, said = _run("out")
    assert code == 2
    assert "is not a folder" in said
    command = "serve-eval references take TRUSTED_HOST:8000 -t TASK --references-dir "
    assert command in said


def test_runs_with_a_seed_each_make_a_reference_without_one():
    for seed in "1223":
        folder = f"run{seed}" if not Path(f"run{seed}").exists() else "again"
        varied = f"--set launcher.varied=true --set protocol.seed={seed}"
        serve_eval(f"run -o {folder} --no-reference {varied}", *ASKED, *HOT, exits=3)
    made = serve_eval(
        "references register run1 run2 run3 --references-dir my-references",
        exits=0,
        prints="the mean of 3 runs",
    )
    assert " seeds    3 sampling seeds: 1, 2, 3\n" in made.stdout
    [file] = Path("my-references").glob("*.yaml")
    assert "seed: 1" not in file.read_text().replace("random_seed", "")
    code, printed = _run("judged", "--set", "protocol.seed=9", "--set", "launcher.varied=true")
    assert code == 0, printed
    serve_eval(
        "references register run1 run2 again --references-dir others",
        exits=2,
        tells='seed: was "1", now "2"',
    )
