"""A FAIL that its suite does not prove is told as one of the run alone, wherever it is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory, simulated_here: None) -> Path:
    """Return a suite with a FAIL of a run alone that Holm's correction leaves undecided."""
    top = tmp_path_factory.mktemp("corrected")
    made = serve_eval(
        "run", "--launcher", "simulated", "-m", "org/m", "-t", "word_problems", "--no-reference",
        "--set=word_problems.num_samples=60", "-o", top / "first",
    )  # fmt: skip
    assert made.returncode == 3, made.stderr
    serve_eval("references", "register", top / "first", "--references-dir", top / "refs")
    damages = [f", damage: {one}" for one in (0.12, 0.16, 0.2)]
    plans = "".join(
        f"  - {{name: r{i}, launcher: {{name: simulated{damage}}}}}\n"
        for i, damage in enumerate(("", "", "", *damages, "", ""))
    )
    (top / "suite.yaml").write_text(
        f"defaults: {{model: org/m, references_dir: {top / 'refs'},"
        " verdict: {paired: {margin: 8}}, tasks: [{word_problems: {num_samples: 60}}]}\n"
        f"plans:\n{plans}"
    )
    serve_eval("run", top / "suite.yaml", "-o", top / "out")
    return top / "out"


def _corrected_rows(suite: Path) -> list[dict[str, object]]:
    rows = json.loads((suite / "suite_report.json").read_text())["rows"]
    found = [row for row in rows if (row["own"], row["outcome"]) == ("FAIL", "INCONCLUSIVE")]
    assert found, [(row["run"], row["own"], row["outcome"], row["p"]) for row in rows]
    return found


def test_a_diagnosis_names_the_outcome_of_the_suite_and_the_margin(corrected: Path) -> None:
    run = corrected / "runs" / str(_corrected_rows(corrected)[0]["run"])
    text = serve_eval("diagnose", run, "-v", COLUMNS="200").stdout
    assert text.startswith(" INCONCLUSIVE   word_problems  ")
    assert " suite    FAIL alone; in the suite: INCONCLUSIVE\n" in text
    assert " rule     paired, margin 8.000\n" in text
    assert "threshold" not in text
    found = json.loads(serve_eval("diagnose", run, "--json").stdout)
    [task] = found["result"]["runs"][0]["tasks"]
    assert (task["threshold"], task["margin"], task["rule"]) == (None, 8.0, "paired")
    assert (task["outcome"], task["in_suite"]) == ("FAIL", "INCONCLUSIVE")
    sound = serve_eval("diagnose", corrected / "runs/r0", COLUMNS="200").stdout
    assert re.match(r" PASS   word_problems  \S+ 71.7 ", sound), sound
    assert "in the suite" not in sound


def test_a_diagnosis_names_first_how_the_server_was_launched_otherwise(corrected: Path) -> None:
    run = corrected / "runs" / str(_corrected_rows(corrected)[0]["run"])
    lines = serve_eval("diagnose", run, COLUMNS="200").stdout.splitlines()
    first, *_ = [line for line in lines if re.match(r" (likely|for|seen) +\w+: ", line)]
    assert " other_launch: the reference was taken at launcher simulated; this" in first
    assert "damage 0." in first
    alike = serve_eval("diagnose", corrected / "runs/r0", COLUMNS="200").stdout
    assert "other_launch" not in alike


def test_a_diagnosis_by_the_classic_rule_has_its_threshold(corrected: Path, tmp_path: Path) -> None:
    done = serve_eval(
        "run", "--launcher", "simulated", "-m", "org/m", "-t", "word_problems",
        "--set=word_problems.num_samples=60", "--set=launcher.damage=0.9", "--verdict", "classic",
        "--references-dir", corrected.parent / "refs", "-o", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    text = serve_eval("diagnose", tmp_path / "run", "-v", COLUMNS="200").stdout
    assert text.startswith(" FAIL ")
    assert re.search(r"\n rule     classic, threshold \d+\.\d+\n", text)


def test_an_overview_has_the_outcome_of_the_suite(corrected: Path, tmp_path: Path) -> None:
    page = tmp_path / "view.html"
    done = serve_eval("runs", "view", corrected, "-o", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.count("INCONCLUSIVE (alone: FAIL)") == len(_corrected_rows(corrected))


def test_a_warning_about_two_rules_names_the_rule_as_alone(corrected: Path) -> None:
    for row in _corrected_rows(corrected):
        warnings = [str(one) for one in row["warnings"]]  # type: ignore[attr-defined]
        told = [one for one in warnings if one.startswith("rules_disagree: ")]
        assert not any(": paired says" in one for one in told)
        for one in told:
            assert "paired alone, without the suite's correction, says FAIL" in one
