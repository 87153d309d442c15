"""References of few samples, of the wrong server and of red runs, through the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

SIMULATED = ["--launcher", "simulated", "--model", "my-org/m", "-t", "word_problems"]
FEW = "10 of 500 samples: detects only drops of 55.6 points or more"
NO_ADDRESS = "base_url: the plan names no endpoint: add base_url: host:port"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _right(share: float) -> list[str]:
    return ["--set", f"launcher.accuracy={share}"]


def _take(*more: str) -> list[str]:
    few = ["--set", "word_problems.num_samples=10", "--references-dir", "tiny"]
    return ["references", "take", *SIMULATED, *_right(1.0), *few, *more]


def test_a_reference_of_ten_samples_does_not_fail_a_run_of_all(tmp_path: Path) -> None:
    taken = serve_eval(*_take("--runs", "1", "-o", "out"))
    assert taken.returncode == 0, taken.stderr
    assert "the mean of 1 run of 10 samples\n" in taken.stdout
    assert f" warning  {FEW}" in taken.stdout
    assert "1 of 3 runs: more runs would make the reference less noisy" in taken.stdout
    assert "references take: launcher simulated, 1 run, " in taken.stderr
    own = ("--model", "my-org/m", "--references-dir", "tiny")
    shown = serve_eval("references", "show", "word_problems", *own)
    assert f" warning  {FEW}" in shown.stdout
    checked = serve_eval("references", "check", "tiny", "-v")
    assert (checked.returncode, checked.stdout.count("1 run of 10 samples")) == (0, 1)
    assert f"my-org/m: {FEW}" in checked.stdout

    run = ["run", *SIMULATED, "--references-dir", "tiny"]
    done = serve_eval(*run, *_right(0.9), "-o", "sound", "--notify-text", "line.txt")
    assert done.returncode == 0, done.stdout
    said = " ".join(done.stdout.split())
    assert "the reference has 10 of these 500 samples" in said
    assert "uncertain by ±31.0 points, and the run is judged with n = 10" in said
    assert "detects only drops of 55.6 points or more" in said
    line = Path("line.txt").read_text()
    assert float(line.split("[")[1].split(",")[0]) < 0.0, line  # no drop is proven
    report = json.loads((tmp_path / "sound/report.json").read_text())
    assert report["tasks"][0]["verdict"]["num_samples"] == 10
    of_the_test = serve_eval("judge", "sound", "-v").stdout
    assert "the test uses the n of the reference, 10; the run has 500" in of_the_test
    broken = serve_eval(*run, *_right(0.2), "-o", "broken")
    assert broken.returncode == 1, broken.stdout

    registered = serve_eval("references", "register", "broken", "--references-dir", "red")
    assert registered.returncode == 0, registered.stderr
    assert "broken was FAIL against 100.000" in registered.stdout


def test_a_suite_widens_the_interval_by_the_reference_too(tmp_path: Path) -> None:
    assert serve_eval(*_take("--runs", "1", "-o", "out")).returncode == 0
    (tmp_path / "s.yaml").write_text(
        "name: s\nplans:\n  - {name: a, launcher: {name: simulated, accuracy: 0.9},"
        " model: my-org/m, tasks: [word_problems], references_dir: tiny}\n"
    )
    done = serve_eval("run", "s.yaml", "-o", "s", "--notify-text", "line.txt")
    assert done.returncode == 0, done.stdout
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
    command: str,
) -> None:
    plan = "model: m\ntasks: [word_problems]\n"
    Path("plan.yaml").write_text(plan)
    Path("suite.yaml").write_text("name: s\nplans: [{name: a, model: m, tasks: [word_problems]}]\n")
    done = serve_eval(*command.split())
    assert (done.returncode, NO_ADDRESS in done.stderr) == (2, True), done.stderr


def _endpoint(done_stderr: str) -> str:
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
    words: str, variables: dict[str, str], asked: str
) -> None:
    plan = "model: m\ntasks: [word_problems]\n"
    Path("plan.yaml").write_text(plan)
    Path("own.yaml").write_text(f"{plan}base_url: 127.0.0.1:7\n")
    shared = ["--runs", "0", "-o", "out"]  # refused before anything is sent
    done = serve_eval("references", "take", *words.split(), *shared, **variables)
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
def test_what_a_reference_cannot_take_is_refused_with_the_reason(words: str, said: str) -> None:
    done = serve_eval("references", "take", *words.split(), "-t", "word_problems")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert "Did you mean" not in done.stderr
