"""Ask few questions often: whole runs over HTTP, from the refusal of a margin to the verdict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

QUESTIONS, REPEATS = 30, 24


@pytest.fixture(scope="module")
def asked(
    data_root: Path, tmp_path_factory: pytest.TempPathFactory, simulated_here: None
) -> tuple[list[str], Path]:
    """Return the flags of runs of 30 questions, and a folder with a reference of 24 repeats."""
    folder = tmp_path_factory.mktemp("repeats")
    flags = ["run", "--launcher", "simulated", "--model", "my-org/my-model", "--tasks", "gsm8k"]
    for option in ("accuracy=0.7", "flip_rate=0.2", "seed=5", "varied=true"):
        flags += ["--set", f"launcher.{option}"]
    flags += ["--set", f"gsm8k.num_samples={QUESTIONS}", "--dataset-root", str(data_root)]
    taken = serve_eval(*flags, "--no-reference", "--repeats", str(REPEATS), "-o", folder / "first")
    assert taken.returncode == 3, taken.stderr
    (folder / "said").write_text(taken.stdout)
    refs = ("--references-dir", str(folder / "refs"))
    kept = serve_eval("references", "register", folder / "first", *refs)
    assert kept.returncode == 0, kept.stderr
    assert f"the mean of {REPEATS} runs of {QUESTIONS} samples" in kept.stdout
    return [*flags, *refs], folder


def _task(out: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((out / "report.json").read_text())["tasks"][0]
    return told


def test_repeats_exclude_a_margin_that_the_questions_alone_cannot(
    asked: tuple[list[str], Path], tmp_path: Path
) -> None:
    """Thirty equal pairs exclude no less than 8.3 points; 24 answers to each question do."""
    flags, _ = asked
    rule = ("--verdict", "noninferiority", "--margin", "8")
    done = serve_eval(
        *flags, *rule, "--repeats", str(REPEATS), "--set", "launcher.run=1", "-o", tmp_path / "b"
    )
    assert done.returncode == 0, done.stdout
    verdict = _task(tmp_path / "b")["verdict"]
    assert verdict["outcome"] == "PASS"
    assert (verdict["paired"]["reference_runs"], verdict["paired"]["candidate_runs"]) == (24, 24)
    text = " ".join(done.stdout.split())
    assert f"on these {QUESTIONS} prompts, {REPEATS} and {REPEATS} answers to each" in text
    assert "against any build of equal accuracy" in text


def test_a_margin_out_of_reach_is_refused_before_anything_is_asked(
    asked: tuple[list[str], Path], tmp_path: Path
) -> None:
    flags, _ = asked
    for rule, repeats, times in (("noninferiority", 1, 9), ("paired", 3, 9)):
        done = serve_eval(
            *flags, "--verdict", rule, "--margin", "1", "--repeats", str(repeats), "-o",
            tmp_path / "out",
        )  # fmt: skip
        assert done.returncode == 2, done.stdout
        text = " ".join(done.stderr.split())
        assert f"a margin of 1 points is out of reach: {QUESTIONS} prompts" in text
        assert f"--repeats {times}" in text
        assert f"ask {-(-268 // repeats)} prompts or more" in text
        assert not (tmp_path / "out").exists()
    enough = serve_eval(
        *flags, "--verdict", "paired", "--margin", "1", "--repeats", "9", "-o", tmp_path / "out"
    )
    assert enough.returncode != 2, enough.stderr


def test_the_margin_that_a_refusal_names_is_not_refused(
    asked: tuple[list[str], Path], tmp_path: Path
) -> None:
    flags, _ = asked
    rule = ("--verdict", "noninferiority", "--margin")
    refused = serve_eval(*flags, *rule, "8.2", "-o", tmp_path / "out")
    least = refused.stderr.split("set a margin of ")[1].split()[0]
    assert 8.2 < float(least) < 8.3
    assert serve_eval(*flags, *rule, least, "-o", tmp_path / "out").returncode != 2


def test_a_comparison_refuses_it_too(data_root: Path, tmp_path: Path) -> None:
    plan = (
        "{model: my-org/my-model, launcher: {simulated: {seed: 5, run: RUN}},"
        f" tasks: [{{gsm8k: {{num_samples: {QUESTIONS}}}}}], dataset_root: ['{data_root}']}}\n"
    )
    for run in "01":
        (tmp_path / f"{run}.yaml").write_text(plan.replace("RUN", run))
    sides = ("--launch", tmp_path / "0.yaml", tmp_path / "1.yaml", "--self", "0")
    done = serve_eval("compare", *sides, "--repeats", "2", "--margin", "1", "-o", tmp_path / "c")
    assert done.returncode == 2, done.stdout
    assert "out of reach: 30 prompts with 2 and 2 answers of the two sides" in done.stderr
    assert not (tmp_path / "c" / "b").exists()


def test_the_line_about_repeats_has_its_errors_ties_and_passes(
    asked: tuple[list[str], Path],
) -> None:
    _, folder = asked
    task = _task(folder / "first")
    told, result = task["result"]["stability"], task["result"]
    shown = " ".join((folder / "said").read_text().split())
    assert f"avg@{REPEATS} has a standard error of {told['se']:.3f} by question" in shown
    assert f"{told['se_runs']:.3f} over the runs, for these questions" in shown
    assert f"{told['tied']} of {QUESTIONS} prompts tied" in shown
    assert f"pass@1 {told['pass_at']['1']:.2f}, pass@2" in shown
    assert "pass@3 " not in shown
    assert told["se_runs"] < told["se"]
    low, high = result["interval"]
    assert high - low == pytest.approx(2 * 1.96 * told["se"], rel=0.25)
