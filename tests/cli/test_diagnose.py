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
    assert run["findings"][0]["explains"] == run["tasks"][0]["wrong"]


def test_a_folder_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    done = serve_eval("diagnose", tmp_path)
    assert done.returncode == 2
    assert "holds no run" in done.stderr


def test_a_capsule_says_how_it_is_sent_again(red: Path, tmp_path: Path) -> None:
    done = serve_eval("capsule", red, "--sample", "test-3", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "word_problems_test-3"
    assert done.stdout == f"{folder}: sh {folder / 'curl.sh'}\n"
    names = {"README.md", "actual.json", "body.json", "curl.sh", "expected.json", "versions.json"}
    assert {file.name for file in folder.iterdir()} == names
    assert serve_eval("capsule", red, "--sample", "test-3", "-o", tmp_path).stdout == done.stdout
    (folder / "body.json").write_text("{}")
    assert serve_eval("capsule", red, "--sample", "test-3", "-o", tmp_path).returncode == 2
    unknown = serve_eval("capsule", red, "--sample", "test-333")
    assert unknown.returncode == 2
    assert "no such sample" in unknown.stderr
