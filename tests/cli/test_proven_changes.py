"""Test that what a suite proves, or does not prove, is told in every output."""

import csv
import io
import json
import re
import shutil
from xml.etree import ElementTree

import pytest

from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

MODEL = "org/llama-8b"
SIZES = {"word_problems": 60, "passkey_short": 40}
DAMAGES = {"bf16": 0.0, "fp8": 0.4, "nvfp4": 0.9}
"""With a margin of 60 points: no change, a proven drop that passes, and a FAIL."""
SVG = "{http://www.w3.org/2000/svg}"


def _run(folder, more="", *, tasks="word_problems", n=60):
    done = serve_eval(
        f"run --launcher simulated -m {MODEL} -t {tasks} --limit {n} --no-reference"
        f" -o {folder} {more}"
    )
    assert (folder / "report.json").exists(), done.stderr


@pytest.fixture(scope="module")
def suite(tmp_path_factory, simulated_here):
    """Return a folder with suite.yaml, whose runs are judged by pairs, and its results in out."""
    top = tmp_path_factory.mktemp("proven")
    serve_eval(
        f"run --launcher simulated -m {MODEL} -o {top}/first -t",
        ",".join(SIZES),
        "--no-reference",
        *(f"--set={name}.num_samples={n}" for name, n in SIZES.items()),
        exits=3,
    )
    serve_eval(f"references register {top}/first --references-dir {top}/refs", exits=0)
    _write_suite(top / "suite.yaml", top / "refs", *DAMAGES)
    done = serve_eval(f"run {top}/suite.yaml -o {top}/out", COLUMNS="80", exits=1)
    (top / "printed").write_text(done.stdout)
    return top


def _write_suite(to, references, *names):
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


def _export(*arguments, columns=200):
    done = serve_eval("runs export", *arguments, COLUMNS=str(columns), exits=0)
    return done.stdout


def _rows(*arguments):
    text = _export(*arguments, "--format", "csv")
    return {row["run"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}


def test_a_proven_drop_that_passes_is_seen_wherever_the_suite_is_shown(suite):
    printed = (suite / "printed").read_text()
    table = [line for line in printed.splitlines() if line.startswith((" PASS", " verdict"))]
    [line] = [line for line in table if " fp8 " in line and "word_problems" in line]
    assert line.startswith(" PASS (drop)")
    assert max(map(len, table)) <= 80
    flat = " ".join(printed.split())
    told = "fp8/word_problems: a drop is proven: drop "
    assert told in flat
    assert "small_drop" not in printed
    assert "by one-sided p" not in flat
    assert "a drop of the margin, 60.0 points, is excluded" in flat
    summary = (suite / "out/summary.md").read_text()
    assert "| **PASS (drop)** | fp8 | " in summary
    assert "warning: fp8/word\\_problems: a drop is proven: drop" in summary
    assert "PASS (drop)" in (suite / "out/report.html").read_text()
    asked = f"run --resume {suite}/out -v"
    noted = serve_eval(asked, GITHUB_ACTIONS="true", COLUMNS="80")
    assert "d: a drop on the same prompts is proven" in " ".join(noted.stdout.split())
    output = noted.stdout + noted.stderr
    assert "::warning title=serve-eval%3A word_problems::fp8/word_problems: a drop is" in output


@pytest.mark.parametrize("name", ["table", "markdown", "latex", "svg"])
def test_a_proven_drop_has_its_own_mark_in_every_format(name, suite):
    text = _export(suite / "out", "--format", name)
    assert "d: a drop on the same prompts is proven" in " ".join(text.split())
    if name == "svg":
        root = ElementTree.fromstring(text)
        [drop, *_] = root.findall(f".//{SVG}polygon")
        plain = {one.get("fill") for one in root.findall(f".//{SVG}circle")}
        assert drop.get("fill") not in plain
    else:
        assert "P d" in text.replace("{", "").replace("}", "")


def test_rules_are_named_in_the_summary_only_where_they_disagree(suite):
    summary = (suite / "out/summary.md").read_text()
    told = [line for line in summary.splitlines() if "rule: " in line]
    assert not any("bf16" in line for line in told)


def test_csv_has_the_corrected_p_and_the_finding(suite):
    rows = _rows(suite / "out")
    drop = rows["fp8"]
    assert drop["word_problems finding"] == "SMALL_DROP"
    assert rows["nvfp4"]["word_problems finding"] == "FAIL"
    assert rows["bf16"]["word_problems finding"] == "PASS"
    p, adjusted, q = (float(drop[f"word_problems {one}"]) for one in ("p", "p holm", "q"))
    assert p < q <= adjusted <= 0.05


def test_a_row_of_csv_against_a_baseline_holds_nothing_of_the_reference(suite):
    given, found = (
        list(csv.DictReader(_export(suite / "out", *more, "--format", "csv").splitlines()))
        for more in ((), ("--differences", "--baseline", "bf16"))
    )
    value = next(row["word_problems value"] for row in given if row["run"] == "bf16")
    assert found
    for row in found:
        assert row["word_problems reference"] == value
        assert not any(row[f"word_problems {one}"] for one in ("finding", "q", "p holm"))


@pytest.mark.parametrize("name", ["table", "markdown", "latex", "svg"])
def test_differences_from_a_named_row_have_intervals_and_stars(name, suite):
    asked = (suite / "out", "--differences", "--baseline", "bf16", "--format", name)
    text = " ".join(_export(*asked).split())
    assert "Differences in points of org/llama-8b from bf16 on the same prompts" in text
    assert "4 tests by Holm, two-sided" in text
    if name == "svg":
        root = ElementTree.fromstring(_export(*asked))
        zeros = [one for one in root.findall(f".//{SVG}line") if one.get("class") == "zero"]
        assert len(zeros) == len(SIZES)
        assert len(root.findall(f".//{SVG}polygon")) == 4
        return
    assert text.count("$-$31.7" if name == "latex" else "-31.7") == 1
    assert "P:" not in text


def test_differences_without_a_baseline_are_from_the_reference(suite):
    text = " ".join(_export(suite / "out", "--differences", "--format", "table").split())
    taken = "taken at launcher simulated, server simulator"
    assert f"from the reference ({MODEL}, default, {taken}) on the same prompts" in text
    assert "6 tests by Holm" in text
    rows = _rows(suite / "out", "--differences")
    named = _rows(suite / "out", "--differences", "--baseline", "bf16")
    assert sorted(named) == ["fp8", "nvfp4"]
    for run, row in named.items():
        for figure in ("difference", "difference low", "difference high", "p"):
            own = float(rows[run][f"word_problems {figure}"])
            # The reference is a run of the same simulated model as bf16.
            assert float(row[f"word_problems {figure}"]) == pytest.approx(own, abs=1e-6)
        assert float(row["word_problems value"]) > 0.0
    assert float(rows["bf16"]["word_problems p table"]) == 1.0


def test_a_baseline_that_no_row_has_is_refused_with_the_rows(suite):
    lost = serve_eval(
        f"runs export {suite}/out --format csv --differences --baseline=x",
        exits=2,
        tells="no row has the name 'x'",
    )
    assert "bf16, fp8, nvfp4" in lost.stderr
    serve_eval(
        f"runs export {suite}/out --format csv --baseline bf16", exits=2, tells="Add --differences"
    )
    serve_eval(
        f"runs export {suite}/first --format table --differences",
        exits=2,
        tells="no differences: no run",
    )


def test_latex_has_a_label_and_aligned_figures_with_marks_apart(suite):
    text = _export(suite / "out", "--format", "latex")
    assert "\\label{tab:results}" in text
    assert "\\begin{tabular}{lr@{\\ }r@{\\ }lr@{\\ }r@{\\ }l}" in text
    [line] = [line for line in text.splitlines() if line.startswith("fp8 ")]
    assert line.startswith("fp8 & 40.0 & {[}28.6, 52.6{]} & P d & ")
    assert "\\label{tab:differences}" in _export(
        suite / "out", "--format", "latex", "--differences"
    )


def test_a_comparison_that_passes_prints_the_difference_and_p_of_each_task(suite, tmp_path):
    bf16, fp8 = (suite / "out/runs" / name for name in ("bf16", "fp8"))
    same = serve_eval(f"compare {bf16} {bf16} -o {tmp_path}/same --self 0", exits=0)
    assert same.stdout.count("% interval over ") == len(SIZES), same.stdout
    assert same.stdout.count(" change ") >= len(SIZES)
    moved = serve_eval(f"compare {bf16} {fp8} -o {tmp_path}/moved --margin 60", exits=0)
    assert moved.stdout.count("% interval over ") == len(SIZES)
    assert "one-sided p = 0.0002" in moved.stdout
    assert sorted(_rows(tmp_path / "moved")) == ["bf16", "fp8"]


def test_a_dry_run_refuses_a_folder_as_the_real_call_does(suite, tmp_path):
    _write_suite(tmp_path / "less.yaml", suite / "refs", "bf16", "fp8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    for folder in (suite / "out", tmp_path / "other", tmp_path / "file"):
        dry = serve_eval(f"run {tmp_path}/less.yaml -o {folder} --dry-run")
        real = serve_eval(f"run {tmp_path}/less.yaml -o {folder}")
        assert dry.returncode == real.returncode == 2, dry.stderr
        assert dry.stderr.splitlines()[0].rpartition(":")[0] in real.stderr
    serve_eval(f"run {suite}/suite.yaml -o {suite}/out --dry-run", exits=0)
    new = serve_eval(f"run {suite}/suite.yaml -o {tmp_path}/new --dry-run")
    assert (new.returncode, (tmp_path / "new").exists()) == (0, False)


@pytest.mark.parametrize("name", ["table", "markdown", "latex", "svg"])
def test_a_run_that_the_suite_does_not_know_stands_outside_of_its_correction(name, suite, tmp_path):
    shutil.copytree(suite / "out", tmp_path / "out")
    assert "outside of its correction" not in _export(tmp_path / "out", "--format", name)
    _run(tmp_path / "out/runs/added", "--set launcher.damage=0.5")
    text = " ".join(_export(tmp_path / "out", "--format", name).split())
    assert "not in the file of the suite, and outside of its correction: added" in text
    added = _rows(tmp_path / "out")["added"]
    assert {value for column, value in added.items() if column.endswith(" p holm")} == {""}
    again = serve_eval(f"run --resume {tmp_path}/out", COLUMNS="200")
    assert "3 runs, 6 tasks" in again.stdout
    assert "outside of its correction: added" in again.stdout


@pytest.fixture(scope="module")
def corrected(tmp_path_factory, simulated_here):
    """Return a suite with a FAIL of a run alone that Holm's correction leaves undecided."""
    top = tmp_path_factory.mktemp("corrected")
    serve_eval(
        "run --launcher simulated -m org/m -t word_problems --no-reference"
        f" --set=word_problems.num_samples=60 -o {top}/first",
        exits=3,
    )
    serve_eval(f"references register {top}/first --references-dir {top}/refs")
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
    serve_eval(f"run {top}/suite.yaml -o {top}/out")
    return top / "out"


def _corrected_rows(suite):
    rows = read_json(suite / "suite_report.json")["rows"]
    found = [row for row in rows if (row["own"], row["outcome"]) == ("FAIL", "INCONCLUSIVE")]
    assert found, [(row["run"], row["own"], row["outcome"], row["p"]) for row in rows]
    return found


def test_a_diagnosis_names_the_outcome_of_the_suite_and_the_margin(corrected):
    run = corrected / "runs" / str(_corrected_rows(corrected)[0]["run"])
    text = serve_eval(f"diagnose {run} -v", COLUMNS="200").stdout
    assert text.startswith(" INCONCLUSIVE   word_problems  ")
    assert " suite    FAIL alone; in the suite: INCONCLUSIVE\n" in text
    assert " rule     paired, margin 8.000\n" in text
    assert "threshold" not in text
    found = json.loads(serve_eval(f"diagnose {run} --json").stdout)
    [task] = found["result"]["runs"][0]["tasks"]
    assert (task["threshold"], task["margin"], task["rule"]) == (None, 8.0, "paired")
    assert (task["outcome"], task["in_suite"]) == ("FAIL", "INCONCLUSIVE")
    sound = serve_eval(f"diagnose {corrected}/runs/r0", COLUMNS="200").stdout
    assert re.match(r" PASS   word_problems  \S+ 71.7 ", sound), sound
    assert "in the suite" not in sound


def test_a_diagnosis_names_first_how_the_server_was_launched_otherwise(corrected):
    run = corrected / "runs" / str(_corrected_rows(corrected)[0]["run"])
    lines = serve_eval(f"diagnose {run}", COLUMNS="200").stdout.splitlines()
    first, *_ = [line for line in lines if re.match(r" (likely|for|seen) +\w+: ", line)]
    assert " other_launch: the reference was taken at launcher simulated; this" in first
    assert "damage 0." in first
    alike = serve_eval(f"diagnose {corrected}/runs/r0", COLUMNS="200").stdout
    assert "other_launch" not in alike


def test_a_diagnosis_by_the_classic_rule_has_its_threshold(corrected, tmp_path):
    serve_eval(
        "run --launcher simulated -m org/m -t word_problems --set=word_problems.num_samples=60"
        f" --set=launcher.damage=0.9 --verdict classic --references-dir {corrected.parent}/refs"
        f" -o {tmp_path}/run",
        exits=1,
    )
    text = serve_eval(f"diagnose {tmp_path}/run -v", COLUMNS="200").stdout
    assert text.startswith(" FAIL ")
    assert re.search(r"\n rule     classic, threshold \d+\.\d+\n", text)


def test_an_overview_has_the_outcome_of_the_suite(corrected, tmp_path):
    page = tmp_path / "view.html"
    serve_eval(f"runs view {corrected} -o {page}", exits=0)
    text = page.read_text()
    assert text.count("INCONCLUSIVE (alone: FAIL)") == len(_corrected_rows(corrected))


def test_a_warning_about_two_rules_names_the_rule_as_alone(corrected):
    for row in _corrected_rows(corrected):
        warnings = [str(one) for one in row["warnings"]]
        told = [one for one in warnings if one.startswith("rules_disagree: ")]
        assert not any(": paired says" in one for one in told)
        for one in told:
            assert "paired alone, without the suite's correction, says FAIL" in one
