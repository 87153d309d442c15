"""Register runs and judge others by pairs, through the commands that a user types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture
def base(data_root: Path) -> list[str]:
    flags = ["run", "--launcher", "simulated", "--model", "my-org/my-model", "--tasks", "mmlu"]
    options = ["accuracy=0.8", "flip_rate=0.034", "seed=3"]
    return [
        *flags,
        "--dataset-root",
        str(data_root),
        *(x for o in options for x in ("--set", f"launcher.{o}")),
    ]


def _verdict(out: Path) -> dict[str, Any]:
    verdict: dict[str, Any] = json.loads((out / "report.json").read_text())["tasks"][0]["verdict"]
    return verdict


def test_a_small_regression_passes_the_classic_rule_and_fails_the_paired_one(
    base: list[str], tmp_path: Path
) -> None:
    refs = tmp_path / "refs"
    assert serve_eval(*base, "--no-reference", "-o", tmp_path / "r0").returncode == 3
    registered = serve_eval("references", "register", tmp_path / "r0", "--references-dir", refs)
    assert registered.returncode == 0, registered.stderr
    assert "the mean of 1 run of 4104 samples\n" in registered.stdout
    assert "1 of 3 runs: more runs would make" in registered.stdout
    shown = serve_eval(
        "references", "show", "mmlu", "--model", "my-org/my-model", "--references-dir", refs
    )
    assert "1 run of 4104 samples" in shown.stdout
    assert "3 runs are wanted" in shown.stdout
    assert "endpoint version simulator" in shown.stdout
    regressed = [
        *base,
        "--references-dir",
        str(refs),
        "--set",
        "launcher.damage=0.015",
        "--set",
        "launcher.run=1",
    ]
    classic = serve_eval(*regressed, "--verdict", "classic", "-v", "-o", tmp_path / "classic")
    assert classic.returncode == 0, classic.stdout
    assert "rules_disagree: classic says PASS, paired says FAIL" in classic.stdout
    assert " prompts); " in classic.stdout
    assert " rules    classic (chosen); paired would say FAIL: a drop of" in classic.stdout
    assert _verdict(tmp_path / "classic")["paired"]["p"] < 0.01
    for face in ("summary.md", "junit.xml", "report.html"):
        told = (tmp_path / "classic" / face).read_text().replace("\\", "")
        assert "rules_disagree: classic says PASS, paired says FAIL" in told, face
    paired = serve_eval(
        *regressed, "--verdict", "paired", "--margin", "1.0", "-o", tmp_path / "paired"
    )
    assert paired.returncode == 1, paired.stdout
    assert _verdict(tmp_path / "paired")["paired"]["margin"] == 1.0
    (tmp_path / "classic/report.json").rename(tmp_path / "kept.json")
    again = serve_eval(
        "judge", tmp_path / "classic", "--verdict", "paired", "--margin", "1.0", "--json"
    )
    assert again.returncode == 1, again.stderr
    # Two runs start their requests in different orders. The drift chart sees that; the verdict does
    # not.
    ours = json.loads(again.stdout)["result"]["tasks"][0]["verdict"]
    theirs = _verdict(tmp_path / "paired")
    assert {**ours, "warnings": None} == {**theirs, "warnings": None}
    assert not (tmp_path / "classic/report.json").exists()
    first = serve_eval("judge", tmp_path / "r0", "--references-dir", refs)
    assert (first.returncode, "PASS" in first.stdout) == (0, True), first.stderr
    same = [
        *base,
        "--references-dir",
        str(refs),
        "--set",
        "launcher.run=2",
        "--verdict",
        "noninferiority",
    ]
    sound = serve_eval(*same, "--limit", "2000", "-o", tmp_path / "sound")
    assert _verdict(tmp_path / "sound")["paired"]["pairs"] == 2000, sound.stderr


def test_a_run_of_a_subset_is_refused_naming_how_to_ask_fewer(
    base: list[str], tmp_path: Path
) -> None:
    assert (
        serve_eval(*base, "--no-reference", "--limit", "20", "-o", tmp_path / "r").returncode == 3
    )
    register = ["references", "register", tmp_path / "r", "--references-dir", tmp_path / "refs"]
    done = serve_eval(*register)
    assert done.returncode == 2
    assert "--set TASK.num_samples=N" in done.stderr
    of_runs = serve_eval("judge", tmp_path)
    assert of_runs.returncode == 3
    assert f"the latest run: {tmp_path / 'r'}" in of_runs.stderr


def test_a_wide_theta_is_said_to_be_that_of_the_classic_rule(
    base: list[str], tmp_path: Path
) -> None:
    refs = tmp_path / "refs"
    small = [*base, "--set", "mmlu.num_samples=60"]
    assert serve_eval(*small, "--no-reference", "-o", tmp_path / "r").returncode == 3
    done = serve_eval("references", "register", tmp_path / "r", "--references-dir", refs)
    assert done.returncode == 0, done.stderr
    for rule in ("classic", "noninferiority", "paired"):
        judged = serve_eval("judge", tmp_path / "r", "--verdict", rule, "--references-dir", refs)
        said = "the classic rule detects only drops of" in " ".join(judged.stdout.split())
        assert said == (rule == "classic"), judged.stdout


def test_a_rule_that_needs_pairs_says_so_before_anything_is_sent(
    base: list[str], tmp_path: Path
) -> None:
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/mmlu.yaml").write_text("my-org/my-model: [{accuracy: 80}]\n")
    flags = [*base, "--references-dir", str(tmp_path / "refs"), "-o", str(tmp_path / "out")]
    done = serve_eval(*flags, "--verdict", "paired")
    assert done.returncode == 3
    assert "no scores per sample" in done.stderr
    assert "references take" in done.stderr
    assert not (tmp_path / "out").exists()
    bad = serve_eval(*flags, "--verdict", "paired", "--margin", "-1")
    assert (bad.returncode, "margin: must be above 0" in bad.stderr) == (2, True), bad.stderr
