"""The tables that a researcher makes of a suite: collected, exported and judged by another rule."""

import csv
import io
import json

import pytest

from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

MODEL = "org/llama-8b"
DAMAGES = {"bf16": 0.0, "fp8": 0.3, "nvfp4": 0.9}
WAIVER = "{match: {name: nvfp4}, reason: known, until: 2999-01-01}"
CLASSIC = ("threshold", "theta", "beta", "sigma", "num_samples")


def _write_suite(to, references, *names, rule="classic"):
    runs = "".join(
        f"    - {{label: {name}, launcher: {{name: simulated, damage: {DAMAGES[name]}}},"
        f" attributes: {{recipe: {name}-recipe, bits: {bits}, kv: {bits > 8}, model: '=A1',"
        f" shift: -0.123456789}}}}\n"
        for bits, name in zip((16, 8, 4), names, strict=False)
    )
    to.write_text(
        f"defaults: {{model: {MODEL}, references_dir: {references}, verdict: {rule},"
        f" tasks: [{{word_problems: {{num_samples: 60}}}}]}}\nmatrix:\n  deployment:\n{runs}"
    )
    return to


@pytest.fixture(scope="module")
def made(tmp_path_factory, simulated_here):
    """Return a folder with references in refs and the results of a suite in out, by classic."""
    top = tmp_path_factory.mktemp("tables")
    serve_eval(
        f"run --launcher simulated -m {MODEL} -t word_problems --no-reference"
        f" --set=word_problems.num_samples=60 -o {top}/first",
        exits=3,
    )
    serve_eval(f"references register {top}/first --references-dir {top}/refs", exits=0)
    file = _write_suite(top / "suite.yaml", top / "refs", *DAMAGES)
    done = serve_eval(f"run {file} -o {top}/out", COLUMNS="80", exits=1)
    (top / "printed").write_text(done.stdout)
    return top


def _begin_together(runs):
    """Let the first sessions of runs begin in the same second."""
    files = list(runs.glob("*/environment.json"))
    assert files
    for file in files:
        first, *more = read_json(file)
        first["started_at"] = "2026-11-27T10:00:00+00:00"
        file.write_text(json.dumps([first, *more]))


def _read(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_a_collected_row_has_the_attributes_of_its_suite(made):
    done = serve_eval(f"runs table {made}/first {made}/out")
    alone, *rows = _read(done.stdout)
    assert [row["recipe"] for row in rows] == [f"{name}-recipe" for name in DAMAGES]
    assert [row["bits"] for row in rows] == ["16", "8", "4"]
    assert [row["kv"] for row in rows] == ["true", "false", "false"]
    assert {row["shift"] for row in rows} == {"-0.123456789"}
    assert {row["model"] for row in rows} == {MODEL}
    assert {row["model (suite)"] for row in rows} == {"'=A1"}
    assert {alone[name] for name in ("recipe", "bits", "model (suite)")} == {""}
    [one] = _read(serve_eval(f"runs table {made}/out/runs/fp8").stdout)
    assert one["recipe"] == "fp8-recipe"


def test_runs_that_began_together_are_in_the_order_of_their_suite(made, tmp_path):
    names, out = ["nvfp4", "bf16", "fp8"], tmp_path / "out"
    serve_eval(f"run -o {out}", _write_suite(tmp_path / "s.yaml", made / "refs", *names))
    _begin_together(out / "runs")
    for table in (f"runs table {out}", f"runs export {out} --format csv"):
        rows = _read(serve_eval(table).stdout)
        assert [row["recipe"] for row in rows] == [f"{name}-recipe" for name in names]


@pytest.mark.parametrize(
    ("rule", "margin"),
    [("classic", ""), ("{paired: {margin: 7}}", "7"), ("{noninferiority: {margin: 9}}", "9")],
)
def test_a_collected_row_has_only_the_figures_that_its_rule_uses(rule, margin, made, tmp_path):
    file = _write_suite(tmp_path / "suite.yaml", made / "refs", "bf16", rule=rule)
    serve_eval(f"run {file} -o {tmp_path}/out")
    [row] = _read(serve_eval(f"runs table {tmp_path}/out").stdout)
    assert row["rule"] in rule
    assert row["margin"] == margin
    assert {bool(row[name]) for name in CLASSIC} == {rule == "classic"}
    assert row["alpha"] == "0.05"


def test_a_suite_that_grew_says_which_rows_are_new_or_changed(made, tmp_path):
    file, out = tmp_path / "suite.yaml", tmp_path / "out"
    _write_suite(file, made / "refs", "bf16")
    first = serve_eval(f"run {file} -o {out}")
    assert "since the report" not in first.stdout
    began = read_json(out / "suite_report.json")["started_at"]
    day = began[:16].replace("T", " ")
    said = f"2 rows are new since the report of {day} UTC: new: fp8/word_problems, nvfp4/"
    _write_suite(file, made / "refs", *DAMAGES)
    grown = serve_eval(f"run {file} -o {out}")
    assert grown.stdout.count(said) == 1
    assert (out / "summary.md").read_text().replace("\\", "").count(said) == 1
    assert said in (out / "report.html").read_text()
    assert "since the report" not in serve_eval(f"run --resume {out}").stdout
    _write_suite(file, made / "refs", *DAMAGES)
    file.write_text(file.read_text() + f"waivers: [{WAIVER}]\n")
    waived = serve_eval(f"run {file} -o {out}")
    assert "1 row changed since the report of" in waived.stdout
    assert "changed: nvfp4/word_problems (FAIL to FAIL (waived))" in waived.stdout
    assert not [*out.glob("*earlier*")]


def test_a_suite_that_was_interrupted_remembers_the_last_report(made, tmp_path):
    """A kill between the start and the report leaves the earlier one set aside."""
    out = tmp_path / "out"
    file = _write_suite(tmp_path / "suite.yaml", made / "refs", "bf16", "fp8")
    serve_eval(f"run {file} -o {out}")
    report = read_json(out / "suite_report.json")
    report["rows"] = report["rows"][:1]
    (out / "suite_report.json").unlink()
    (out / "suite_report.earlier.json").write_text(json.dumps(report))
    done = serve_eval(f"run {file} -o {out}")
    assert "1 row is new since the report of" in done.stdout
    (out / "suite_report.json").rename(out / "suite_report.earlier.json")
    (out / "suite_report.earlier.json").write_text("{")
    serve_eval(f"run {file} -o {out}", exits=done.returncode)


def _marks(text):
    lines = [line.split() for line in text.splitlines() if line.startswith(tuple(DAMAGES))]
    return {line[0]: " ".join(one for one in line if one in "PFIEd") for line in lines}


def test_a_table_has_the_verdicts_of_the_rule_that_was_asked_for(made):
    before = (made / "out/suite_report.json").read_bytes()
    wide = "--verdict paired --margin 60"
    text = serve_eval(f"runs export {made}/out --format table {wide}").stdout
    assert _marks(text) == {"bf16": "P", "fp8": "P d", "nvfp4": "F"}
    assert "these verdicts are by paired margin 60: the reports of the runs" in " ".join(
        text.split()
    )
    plain = serve_eval(f"runs export {made}/out --format table").stdout
    assert _marks(plain) == {"bf16": "P", "fp8": "F", "nvfp4": "F"}
    assert "judged again" not in plain
    told = json.loads(serve_eval(f"judge {made}/out --json {wide}").stdout)
    rows = _read(serve_eval(f"runs export {made}/out --format csv {wide}").stdout)
    for row, judged in zip(rows, told["result"]["rows"], strict=True):
        assert row["word_problems verdict"] == judged["outcome"]
        assert row["word_problems rule"] == judged["rule"] == "paired"
        assert float(row["word_problems p holm"]) == pytest.approx(judged["p_holm"])
    assert (made / "out/suite_report.json").read_bytes() == before


@pytest.mark.parametrize("name", ["markdown", "latex", "svg"])
def test_a_run_alone_is_judged_again_too(name, made):
    asked = ("--verdict", "noninferiority", "--margin", "5", "--references-dir", made / "refs")
    done = serve_eval(f"runs export {made}/first --format {name}", *map(str, asked), exits=0)
    assert "by noninferiority margin 5" in " ".join(done.stdout.split())
    assert "N: NO REFERENCE" not in done.stdout


def test_a_rule_that_cannot_judge_is_an_error_and_no_empty_table(made):
    for command in ("judge", "runs export --format table"):
        done = serve_eval(f"{command} {made}/out --verdict pared")
        assert (done.returncode, done.stdout) == (2, "")
        assert "unknown verdict rule 'pared'. Did you mean 'paired'?" in done.stderr
    serve_eval(
        f"runs export {made}/first --verdict paired",
        exits=2,
        tells="options of verdicts are for the formats table",
    )
    serve_eval(
        f"runs export {made}/first --format csv --verdict paired",
        exits=3,
        tells="word_problems.yaml has no model",
    )


def test_latex_prints_negative_numbers_with_a_minus_sign(made):
    asked = "--format latex --differences --baseline bf16"
    text = serve_eval(f"runs export {made}/out {asked}").stdout
    [line] = [line for line in text.splitlines() if line.startswith("nvfp4 ")]
    assert line.startswith("nvfp4 & nvfp4-recipe & ")
    assert "$-$60.0 & {[}$-$71.4, $-$47.4{]} & " in line
    assert " -6" not in line


def test_next_is_the_worst_drop_and_rules_disagree_in_words(made):
    for rule in ("classic", "paired"):
        done = serve_eval(f"judge {made}/out --verdict", rule)
        assert f"serve-eval show {made / 'out/runs/nvfp4'} --wrong" in done.stdout
    wide = serve_eval(
        f"judge {made}/out --verdict paired --margin 90",
        exits=0,
        prints="the two rules disagree: paired says PASS, classic says FAIL",
    )
    assert f"serve-eval show {made / 'out/runs/nvfp4'} --wrong" in wide.stdout
    assert "rules_disagree" not in wide.stdout
    junit = made / "junit.xml"
    serve_eval(f"judge {made}/out --verdict=paired --margin=90 --junit {junit}")
    assert "the two rules disagree" in junit.read_text()
    assert "rules_disagree" not in junit.read_text()


def test_a_rule_that_the_user_named_is_not_called_the_default(made, tmp_path):
    flags = f"--launcher simulated -m {MODEL} --references-dir {made}/refs"
    size = "-t word_problems --set=word_problems.num_samples=60"
    plain = serve_eval(f"run -o {tmp_path}/plain -v {flags} {size}")
    named = serve_eval(f"run -o {tmp_path}/named --verdict classic -v {flags} {size}")
    assert "paired (default); classic would say" in plain.stdout
    assert "classic (chosen); paired would say" in named.stdout
    again = serve_eval(f"judge {tmp_path}/named -v")
    assert "classic (chosen); paired would say" in again.stdout
    now = serve_eval(f"judge {tmp_path}/plain --verdict classic -v")
    assert "classic (chosen); paired would say" in now.stdout
    assert "(default); classic" in serve_eval(f"judge {tmp_path}/plain -v").stdout
    dry = serve_eval(f"run --verdict classic --dry-run {flags} {size}")
    assert "classic, as chosen" in dry.stdout


def test_labels_of_the_axis_tasks_tell_no_deployments_apart(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "defaults: {model: org/m, no_reference: true}\n"
        "matrix:\n"
        "  kind:\n"
        "    - {label: bf16, launcher: {name: simulated}}\n"
        "    - {label: fp8, launcher: {name: simulated, damage: 0.3}}\n"
        "  tasks:\n"
        "    - {label: sums, tasks: [{word_problems: {num_samples: 6}}]}\n"
        "    - {label: keys, tasks: [{passkey_short: {num_samples: 6}}]}\n"
    )
    done = serve_eval(f"run {tmp_path}/s.yaml -o {tmp_path}/out")
    assert (tmp_path / "out/runs/fp8_keys/report.json").exists(), done.stderr
    text = serve_eval(f"runs export {tmp_path}/out --format csv").stdout
    rows = {row["run"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}
    assert rows.keys() == {"bf16", "fp8"}
    for row in rows.values():
        assert row["word_problems value"]
        assert row["passkey_short value"]
