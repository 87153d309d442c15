"""The example package, installed and run by commands as a user would do it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve_eval.plugins import extensions, registry
from serve_eval.schema import Outcome, Response, Scorer
from tests.cli.command import in_a_process, serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

PACKAGE = Path(__file__).with_name("example_package")
MODEL = "calculator"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package installed, without network access."""
    target = tmp_path_factory.mktemp("site")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    ]
    done = subprocess.run(
        [*pip, "--target", str(target), str(PACKAGE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def path(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield a PYTHONPATH with the package; meanwhile this process finds it too."""
    monkeypatch.syspath_prepend(site)
    extensions._find_installed.cache_clear()
    yield os.pathsep.join([str(site), str(Path(__file__).resolve().parents[2])])
    extensions._find_installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("serve_eval_example")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("references")
    (folder / "sums.yaml").write_text(f"{MODEL}:\n  - accuracy: 99.0\n    source: declared\n")
    return str(folder)


def test_the_list_names_all_four_with_their_package_and_options(path: str) -> None:
    done = in_a_process("data", "list", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    for kind, module, name, option in (
        ("tasks", "sums", "sums", r"num_samples +\(whole number; 50\)"),
        ("scorers", "near", "near", r"tolerance +\(number; 0\)"),
        ("launchers", "calculator", "calculator", r"wrong_by +\(whole number; 0\)"),
        ("verdicts", "within:judge", "within", r"points +\(number; 1\)"),
    ):
        entry = re.search(rf"^  {name}: .+\n(?:    .+\n)+", done.stdout, re.MULTILINE)
        assert entry is not None, done.stdout
        *summary, place = map(str.strip, entry[0].splitlines())
        assert len(" ".join(summary)) > 30
        assert place == f"from serve_eval_example.{module} of serve-eval-example 0.3"
        one = in_a_process("data", "list", kind, name, PYTHONPATH=path)
        assert re.search(option, one.stdout), one.stdout


@pytest.mark.parametrize(("wrong_by", "code", "outcome"), [(0, 0, "PASS"), (1, 1, "FAIL")])
def test_task_launcher_and_verdict_rule_make_a_run_together(
    path: str, references: str, tmp_path: Path, wrong_by: int, code: int, outcome: str
) -> None:
    asked = [
        "run",
        "--launcher",
        "calculator",
        "--set",
        f"launcher.wrong_by={wrong_by}",
        "--model",
        MODEL,
    ]
    judged = ["--verdict", "within", "--set", "verdict.points=2.5", "--references-dir", references]
    done = serve_eval(
        *asked, *judged, "--tasks", "sums", "--json", "-o", tmp_path / "out", PYTHONPATH=path
    )
    assert done.returncode == code, done.stderr
    report = json.loads(done.stdout)["result"]
    [task] = report["tasks"]
    assert (task["result"]["value"], task["verdict"]["outcome"]) == (
        100.0 * (wrong_by == 0),
        outcome,
    )
    assert (task["verdict"]["rule"], task["verdict"]["threshold"]) == ("within", 96.5)
    assert set(report["environment"]["extensions"]) == {
        "tasks.sums",
        "launchers.calculator",
        "verdicts.within",
    }
    info = report["endpoint"]["info"]
    assert (info["launcher"], info["log_file"]) == (
        "calculator",
        str(tmp_path / "out/logs/calculator.log"),
    )
    told = [warning for warning in report["warnings"] if "serve-eval-example 0.3" in warning]
    assert len(told) == 3
    again = serve_eval("judge", "--rescore", tmp_path / "out")
    assert again.stdout.splitlines()[-1] == " samples  none of 50 changed", again.stderr


def test_the_simulated_endpoint_knows_its_task_and_our_rules_judge_it(
    path: str, references: str, tmp_path: Path
) -> None:
    asked = [
        "run",
        "--launcher",
        "simulated",
        "--set",
        "launcher.accuracy=0.3",
        "--model",
        MODEL,
        "--tasks",
        "sums",
    ]
    done = serve_eval(*asked, "--references-dir", references, "--json", "-o", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    [task] = json.loads(done.stdout)["result"]["tasks"]
    assert task["verdict"]["outcome"] == "FAIL"
    assert 0 < task["result"]["value"] < 70


def test_its_dry_run_shows_its_command_and_a_misspelt_option_is_told(
    path: str, references: str
) -> None:
    asked = [
        "run",
        "--launcher",
        "calculator",
        "--model",
        MODEL,
        "--tasks",
        "sums",
        "--references-dir",
        references,
    ]
    done = serve_eval(*asked, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "-m serve_eval_example._server" in done.stdout
    wrong = serve_eval(*asked, "--set", "launcher.wrong_bi=1", "--set", "sums.num_samples=0")
    assert wrong.returncode == 2
    assert "launcher.wrong_bi: unknown option. Did you mean 'wrong_by'?" in wrong.stderr
    assert "sums: num_samples must be 1 or more" in wrong.stderr


def test_the_named_scorer_scores(path: str) -> None:
    make = registry.load("serve_eval.scorers", "near")
    scorer: Scorer = make(**registry.check_options(make, {"tolerance": 1}, "near"))
    for expected in (4, {"answer": 4.0}):
        texts = ("5", "6", "none", *scorer.answers(expected))
        scores = [
            scorer.score(expected, Response(text=text, finish_reason="stop")) for text in texts
        ]
        assert [score.value for score in scores] == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert (scores[2].outcome, scorer.problems({"answer": "four"})) == (
        Outcome.UNPARSED,
        ["expected a number"],
    )


def test_a_run_of_a_shipped_task_imports_nothing_of_it(path: str, data_root: Path) -> None:
    asked = [
        "run",
        "--tasks",
        "gsm8k",
        "--dry-run",
        "--no-reference",
        "--model",
        "m",
        "--limit",
        "3",
    ]
    done = serve_eval(*asked, "--dataset-root", data_root)
    assert done.returncode == 0, done.stderr
    assert "sums" in registry.names("serve_eval.tasks")
    assert not [name for name in sys.modules if name.startswith("serve_eval_example")]
