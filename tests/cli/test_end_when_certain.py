"""Runs and suites that end once a FAIL is certain: what they ask, say and keep."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

N = 200


@pytest.fixture(scope="module")
def references(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("references")
    for task in ("gsm8k", "mmlu"):
        (folder / f"{task}.yaml").write_text("simulated:\n  - accuracy: 90.0\n    source: tests\n")
    return folder


def _report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder / "report.json")
    return found


def _asked(folder: Path, task: str) -> int:
    file = folder / "samples" / f"{task}.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def run(data_root: Path, references: Path, tmp_path: Path):
    """Return a function that runs `serve-eval run` on the simulated model."""

    def call(*words: str, exits: int, out: str = "out", accuracy: float = 0.9):
        return serve_eval(
            "run --launcher simulated --set limits.order_seed=5 --concurrency 8",
            *("--tasks", "gsm8k,mmlu", "--limit", N),
            *("--dataset-root", data_root, "--references-dir", references, "-o", tmp_path / out),
            *("--set", f"launcher.accuracy={accuracy}"),
            *words,
            exits=exits,
        )

    return call


def test_a_certain_fail_leaves_the_rest_unasked(run, tmp_path):
    out = tmp_path / "out"
    done = run("--end-when-certain", exits=1, accuracy=0.3)
    report = _report(out)
    gsm8k, mmlu = (task["verdict"] for task in report["tasks"])
    assert gsm8k["outcome"] == "FAIL"
    assert gsm8k["budget"]["ended_by"] == report["loads"][-1]["ended_by"] == "end_when_certain"
    assert mmlu["outcome"] == "NOT ASKED"
    assert _asked(out, "gsm8k") < 0.6 * N
    assert _asked(out, "mmlu") == 0
    first = done.stdout
    assert " NOT ASKED " in first
    assert "none of the 200 samples was asked before a certain FAIL ended the run" in first
    assert "the verdict is certain: all samples give a value of" in first
    junit = (out / "junit.xml").read_text()
    assert 'failures="1" errors="0" skipped="1"' in junit
    assert '<skipped message="NOT ASKED mmlu' in junit
    assert "| **NOT ASKED** | mmlu |" in (out / "summary.md").read_text()
    assert "NOT ASKED" in (out / "report.html").read_text()

    again = serve_eval("run --resume", out, exits=1)
    assert (
        "nothing was asked: a FAIL is certain; --no-end-when-certain asks the rest" in again.stdout
    )
    assert _asked(out, "mmlu") == 0
    judged = serve_eval("judge", out, exits=1)
    assert " NOT ASKED " in judged.stdout

    serve_eval("run --resume", out, "--no-end-when-certain", exits=1)
    assert [_asked(out, task) for task in ("gsm8k", "mmlu")] == [N, N]
    whole = [task["verdict"] for task in _report(out)["tasks"]]
    assert [(one["outcome"], one["budget"]) for one in whole] == [("FAIL", None), ("FAIL", None)]


def test_a_run_without_a_certain_fail_asks_everything(run, tmp_path):
    run("--end-when-certain", exits=0)
    assert [_asked(tmp_path / "out", task) for task in ("gsm8k", "mmlu")] == [N, N]
