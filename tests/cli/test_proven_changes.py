"""A proven change that no rule fails is seen in every output, and differences are a table."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

MODEL = "org/llama-8b"
SIZES = {"word_problems": 60, "passkey_short": 40}
DAMAGES = {"bf16": 0.0, "fp8": 0.4, "nvfp4": 0.9}
"""With a margin of 60 points: no change, a proven drop that passes, and a FAIL."""
SVG = "{http://www.w3.org/2000/svg}"


def _run(folder: Path, *more: str, tasks: str = "word_problems", n: int = 60) -> None:
    done = serve_eval(
        "run", "--launcher", "simulated", "-m", MODEL, "-t", tasks, "--limit", str(n),
        "--no-reference", "-o", folder, *more,
    )  # fmt: skip
    assert (folder / "report.json").exists(), done.stderr


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory, simulated_here: None) -> Path:
    """Return a folder with suite.yaml, whose runs are judged by pairs, and its results in out."""
    top = tmp_path_factory.mktemp("proven")
    made = serve_eval(
        "run", "--launcher", "simulated", "-m", MODEL, "-t", ",".join(SIZES), "--no-reference",
        *(f"--set={name}.num_samples={n}" for name, n in SIZES.items()), "-o", top / "first",
    )  # fmt: skip
    assert made.returncode == 3, made.stderr
    registered = serve_eval(
        "references", "register", top / "first", "--references-dir", top / "refs"
    )
    assert registered.returncode == 0, registered.stderr
    _write_suite(top / "suite.yaml", top / "refs", *DAMAGES)
    done = serve_eval("suite", top / "suite.yaml", "-o", top / "out", COLUMNS="80")
    assert done.returncode == 1, done.stderr
    (top / "printed").write_text(done.stdout)
    return top


def _write_suite(to: Path, references: Path, *names: str) -> None:
    tasks = ", ".join(f"{{{name}: {{num_samples: {n}}}}}" for name, n in SIZES.items())
    runs = "".join(
        f"    - {{label: {name}, launcher: {{name: simulated, damage: {DAMAGES[name]}}}}}\n"
        for name in names
    )
    to.write_text(
        f"defaults: {{model: {MODEL}, references_dir: {references},"
        f" verdict: {{paired: {{margin: 60}}}}, tasks: [{tasks}]}}\n"
        f"matrix:\n  deployment:\n{runs}"
    )


def _export(*arguments: str | Path, columns: int = 200) -> str:
    done = serve_eval("export", *arguments, COLUMNS=str(columns))
    assert done.returncode == 0, done.stderr
    return done.stdout


def _rows(*arguments: str | Path) -> dict[str, dict[str, str]]:
    text = _export(*arguments, "--format", "csv")
    return {row["run"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}


def test_a_proven_drop_that_passes_is_seen_wherever_the_suite_is_shown(suite: Path) -> None:
    printed = (suite / "printed").read_text()
    table = printed[: printed.index("\n\n")].splitlines()
    [line] = [line for line in table if " fp8 " in line and "word_problems" in line]
    assert line.startswith("PASS (drop)")
    assert max(map(len, table)) <= 80
    assert not any(" bf16 " in line for line in table)
    flat = " ".join(printed.split())
    told = "fp8/word_problems: a drop is proven: drop "
    assert told in flat
    assert "small_drop" not in printed
    assert "a drop of the margin, 60.0 points, is excluded" in flat
    assert "d: a drop on the same prompts is proven" in flat
    summary = (suite / "out/summary.md").read_text()
    assert "| **PASS (drop)** | fp8 | word\\_problems |" in summary
    assert "warning: fp8/word\\_problems: a drop is proven: drop" in summary
    assert "PASS (drop)" in (suite / "out/report.html").read_text()
    noted = serve_eval(
        "suite", "--resume", suite / "out", GITHUB_ACTIONS="true", COLUMNS="80"
    )
    output = noted.stdout + noted.stderr
    assert "::warning title=serve-eval%3A word_problems::fp8/word_problems: a drop is" in output


@pytest.mark.parametrize("name", ["table", "markdown", "latex", "svg"])
def test_a_proven_drop_has_its_own_mark_in_every_format(name: str, suite: Path) -> None:
    text = _export(suite / "out", "--format", name)
    assert "d: a drop on the same prompts is proven" in " ".join(text.split())
    if name == "svg":
        root = ElementTree.fromstring(text)
        [drop, *_] = root.findall(f".//{SVG}polygon")
        plain = {one.get("fill") for one in root.findall(f".//{SVG}circle")}
        assert drop.get("fill") not in plain
    else:
        assert "P d" in text.replace("{", "").replace("}", "")


def test_rules_are_named_in_the_summary_only_where_they_disagree(suite: Path) -> None:
    summary = (suite / "out/summary.md").read_text()
    told = [line for line in summary.splitlines() if "rule: " in line]
    assert not any("bf16" in line for line in told)


def test_csv_has_the_corrected_p_and_the_finding(suite: Path) -> None:
    rows = _rows(suite / "out")
    drop = rows["fp8"]
    assert drop["word_problems finding"] == "SMALL_DROP"
    assert rows["nvfp4"]["word_problems finding"] == "FAIL"
    assert rows["bf16"]["word_problems finding"] == "PASS"
    p, adjusted, q = (float(drop[f"word_problems {one}"]) for one in ("p", "p holm", "q"))
    assert p < q <= adjusted <= 0.05
