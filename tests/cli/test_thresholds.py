"""Values on a threshold, thresholds out of range, and tasks where lower is better, as users see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


def _references(tmp_path: Path, entry: str) -> Path:
    folder = tmp_path / "references"
    folder.mkdir(exist_ok=True)
    (folder / "word_problems.yaml").write_text(f"simulated:\n  - {entry}\n")
    return folder


def _run(tmp_path: Path, entry: str, n: int = 100, out: str = "out") -> tuple[int, str]:
    done = serve_eval(
        *("run", "--launcher", "simulated", "--set", "launcher.accuracy=0.57", "--set", "seed=1"),
        *("-t", "word_problems", "--set", f"word_problems.num_samples={n}"),
        *("--references-dir", _references(tmp_path, entry), "-o", tmp_path / out),
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("higher", ["true", "false"])
def test_a_run_on_the_threshold_passes_and_one_step_beyond_fails(
    tmp_path: Path, higher: str
) -> None:
    """Whatever the count of 100 is, its own decimal is a threshold that it passes."""
    _run(tmp_path, "{accuracy: 57, threshold: 1}")
    [task] = json.loads((tmp_path / "out" / "report.json").read_text())["tasks"]
    right = task["result"]["outcomes"]["correct"]
    for threshold, code in ((right, 0), (right + (1 if higher == "true" else -1), 1)):
        entry = f"{{accuracy: 57, threshold: {threshold}, higher_is_better: {higher}}}"
        assert _run(tmp_path, entry, out=f"{threshold}")[0] == code


def test_where_lower_is_better_everything_says_that_a_value_above_fails(tmp_path: Path) -> None:
    code, said = _run(tmp_path, "{accuracy: 20, higher_is_better: false}")
    assert code == 1
    assert "fails above" in said
    written = ["summary.md", "junit.xml", "report.html"]
    texts = {
        name: (tmp_path / "out" / name).read_text()
        for name in written
        if (tmp_path / "out" / name).exists()
    }
    assert "\\> 31.6" in texts["summary.md"]
    assert "fails above" in texts["report.html"]
    for text in (said, *texts.values()):
        assert "fails below" not in text
        assert "< 31.6" not in text
        assert "&lt; 31.6" not in text


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("accuracy: 101", "accuracy must be 0 or more and 100 or less, not 101: correct"),
        ("accuracy: -1", "accuracy must be 0 or more and 100 or less, not -1: correct"),
        ("{accuracy: 57, threshold: 570}", "threshold must be 0 or more and 100 or less"),
    ],
)
def test_a_number_out_of_range_is_refused_before_a_request(
    tmp_path: Path, entry: str, message: str
) -> None:
    code, said = _run(tmp_path, entry)
    assert code == 2
    assert message in said
    assert "word_problems.yaml:2: simulated" in said
    assert not (tmp_path / "out").exists()


def test_a_threshold_that_nothing_fails_is_a_warning(tmp_path: Path) -> None:
    code, said = _run(tmp_path, "{accuracy: 57}", n=4)
    assert code == 0
    assert "accuracy is 0 or more, so the task never fails: ask more samples" in said
