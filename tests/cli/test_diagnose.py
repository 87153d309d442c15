"""The commands `diagnose` and `capsule`: what they print, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of the simulated endpoint, which cuts half of its answers in two."""
    folder = tmp_path_factory.mktemp("red")
    (folder / "references").mkdir()
    text = "simulated:\n  - accuracy: 90.0\n    source: declared by the tests\n"
    (folder / "references/word_problems.yaml").write_text(text)
    flags = ["--set", "launcher.accuracy=1.0", "--set", "launcher.truncate_rate=0.5"]
    flags += [
        "--set",
        "word_problems.num_samples=80",
        "--references-dir",
        folder / "references",
        "-o",
        folder / "out",
    ]
    done = serve_eval(
        "run", "--launcher", "simulated", "--model", "simulated", "--tasks", "word_problems", *flags
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"next     serve-eval diagnose {folder / 'out'}" in done.stdout
    return folder / "out"


def test_a_diagnosis_is_printed_and_is_no_verdict(red: Path) -> None:
    done = serve_eval("diagnose", red)
    assert done.returncode == 0, done.stderr
    first, lost, second, third, *_ = done.stdout.splitlines()
    assert lost.startswith("   lost: ")
    assert first.startswith("word_problems: FAIL")
    assert second.startswith("1. truncated (word_problems): ")
    assert third.startswith("   explains up to ")
    assert "change: " in done.stdout
    told = json.loads(serve_eval("diagnose", red, "--json").stdout)
    [run] = told["runs"]
    assert run["findings"][0]["rule"] == "truncated"
    assert 0 < run["findings"][0]["explains"] < run["tasks"][0]["wrong"]  # some were wrong before


def test_a_folder_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    done = serve_eval("diagnose", tmp_path)
    assert done.returncode == 2
    assert "holds no run" in done.stderr


def test_a_capsule_says_how_it_is_sent_again(red: Path, tmp_path: Path) -> None:
    done = serve_eval("capsule", red, "--sample", "test-3", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "word_problems_test-3"
    assert done.stdout.startswith(f" WRITTEN   {folder}\n")
    assert done.stdout.endswith(f" next     sh {folder / 'curl.sh'}\n")
    names = {"README.md", "actual.json", "body.json", "curl.sh", "expected.json", "versions.json"}
    assert {file.name for file in folder.iterdir()} == names
    assert serve_eval("capsule", red, "--sample", "test-3", "-o", tmp_path).stdout == done.stdout
    (folder / "body.json").write_text("{}")
    assert serve_eval("capsule", red, "--sample", "test-3", "-o", tmp_path).returncode == 2
    unknown = serve_eval("capsule", red, "--sample", "test-333")
    assert unknown.returncode == 2
    assert "no such sample" in unknown.stderr


def fail_evenly(folder: Path) -> tuple[Path, str]:
    """Return a run of the simulated endpoint that answers evenly too few right, and its output."""
    (folder / "references").mkdir()
    text = "simulated:\n  - accuracy: 90.0\n    source: declared by the tests\n"
    (folder / "references/word_problems.yaml").write_text(text)
    done = serve_eval(
        "run", "--launcher", "simulated", "--model", "simulated", "--tasks", "word_problems",
        "--set", "launcher.accuracy=0.6", "--set", "word_problems.num_samples=200",
        "--references-dir", folder / "references", "-o", folder / "out",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return folder / "out", done.stdout


def test_an_even_loss_names_the_likeliest_causes_and_what_is_next(tmp_path: Path) -> None:
    out, printed = fail_evenly(tmp_path)
    cause = "weights, precision, chat template or sampling"
    assert any("likely" in line and cause in line for line in printed.splitlines())
    told = serve_eval("diagnose", out).stdout
    assert (
        "1. even_loss (word_problems): the loss is even: nothing here shows more of it in" in told
    )
    assert cause in told
    assert "serve-eval serve simulated --set launcher." in told
    assert "--detach; then, with the URL that it prints: serve-eval verify GOOD URL" in told
    assert "no rule explains" not in told


REFUSING = "http://127.0.0.1:9/v1"
RAN = ("--model", "m", "--tasks", "word_problems")


def test_a_run_that_was_refused_begins_with_the_recorded_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = serve_eval("run", "--base-url", REFUSING, *RAN, "--no-reference", "-o", out)
    assert done.returncode == 4
    first, change, *_ = serve_eval("diagnose", out).stdout.splitlines()
    assert first.startswith("1. unfinished: ended by: http://127.0.0.1:9/v1")
    assert "cannot connect to 127.0.0.1:9" in first
    assert "0 of 500 samples were answered before" in first
    assert change == f"   change: serve-eval run --resume {out}"


def test_the_latest_run_begins_with_its_error_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = serve_eval("run", "--base-url", REFUSING, *RAN, "--no-reference")
    assert done.returncode == 4
    assert serve_eval("diagnose").stdout.startswith("1. unfinished: ended by: ")


def test_a_comparison_that_ended_names_the_error_and_what_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = serve_eval("compare", REFUSING, "http://127.0.0.1:19/v1", *RAN, "-o", out)
    assert done.returncode == 4
    first, second, *_ = serve_eval("diagnose", out).stdout.splitlines()
    assert "did not finish: it has no verdict; ended by: " in first
    assert "cannot connect to 127.0.0.1:" in first
    assert second == f"next: the same serve-eval compare command with -o {out}"
    side = serve_eval("diagnose", out / "a").stdout
    assert "cannot connect to 127.0.0.1:" in side.splitlines()[0]
    assert "run --resume" not in side


def test_a_verification_that_ended_is_told_and_no_usage_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = serve_eval("verify", REFUSING, "http://127.0.0.1:19/v1", "--model", "m", "-o", out)
    assert done.returncode == 4
    told = serve_eval("diagnose", out)
    assert told.returncode == 0, told.stderr
    assert "cannot connect to 127.0.0.1:9" in told.stdout
    assert f"next: the same serve-eval verify command with -o {out}" in told.stdout


def test_runs_of_a_suite_that_ended_begin_with_their_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
defaults: {model: m, no_reference: true, tasks: [{name: word_problems}]}
plans:
  - {name: gone, launcher: {name: external, base_url: "http://127.0.0.1:9/v1"}}
"""
    (tmp_path / "suite.yaml").write_text(text)
    out = tmp_path / "out"
    done = serve_eval("suite", tmp_path / "suite.yaml", "-o", out)
    assert done.returncode == 4, done.stdout + done.stderr
    for place in (out, out / "runs/gone"):
        told = serve_eval("diagnose", place)
        assert told.returncode == 0, told.stderr
        assert "cannot connect to 127.0.0.1:9" in told.stdout
        assert f"serve-eval suite --resume {out}" in told.stdout
    monkeypatch.chdir(out / "runs/gone")
    assert f"serve-eval suite --resume {out}" in serve_eval("diagnose", ".").stdout
