"""A table corrects its findings, names the rules behind it, and says why a cell has no figure."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest

from serve_eval.report.results_table import FORMATS
from tests.cli.command import serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

MODEL = "org/llama-8b"
SIZES = {"word_problems": 60, "passkey_short": 40}
DAMAGES = {"bf16": 0.0, "near": 0.1, "nvfp4": 0.9}
"""No change; a drop that is proven alone and not by six tests; a clear drop."""
TEXTS = [name for name in FORMATS if name != "csv"]
SET = [f"--set={name}.num_samples={n}" for name, n in SIZES.items()]


def _run(folder, *more, tasks=",".join(SIZES)):  # noqa: B008 - a text
    done = serve_eval(f"run --launcher simulated -m {MODEL} -t {tasks} -o {folder}", *more)
    assert (folder / "report.json").exists(), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory, simulated_here):
    """Return a folder with references in refs and a suite in out; one run of it is lost."""
    top = tmp_path_factory.mktemp("rules")
    _run(top / "first", "--no-reference", *SET)
    serve_eval(f"references register {top}/first --references-dir {top}/refs", exits=0)
    tasks = ", ".join(f"{{{name}: {{num_samples: {n}}}}}" for name, n in SIZES.items())
    runs = "".join(
        f"    - {{label: {name}, launcher: {{name: simulated, damage: {damage}}}}}\n"
        for name, damage in DAMAGES.items()
    )
    (top / "suite.yaml").write_text(
        f"defaults: {{model: {MODEL}, references_dir: {top / 'refs'},"
        f" verdict: {{noninferiority: {{margin: 9}}}}, tasks: [{tasks}]}}\n"
        f"matrix:\n  deployment:\n{runs}"
        "    - {label: lost, launcher: {name: external, base_url: 'http://127.0.0.1:9'}}\n"
    )
    serve_eval(f"run {top}/suite.yaml -o {top}/out")
    assert (top / "out/suite_report.json").exists()
    return top


def _export(line="", *arguments):
    done = serve_eval(f"runs export {line}", *arguments, exits=0)
    return done.stdout


def _rows(*arguments):
    text = _export("--format csv", *arguments)
    return {row["run"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}


def _read_lines(file):
    return {line["id"]: line for line in map(json.loads, file.read_text().splitlines())}


def _flat(text):
    return " ".join(re.sub(r"<[^>]*>|[{}\\]", " ", text).split())


@pytest.mark.parametrize("rule", ["noninferiority", "paired", "classic"])
def test_a_finding_that_only_many_tests_prove_is_not_published(rule, made):
    near = _rows(made / "out", "--verdict", rule)["near"]
    p, adjusted = (float(near[f"word_problems {one}"]) for one in ("p", "p holm"))
    assert p <= 0.05 < adjusted
    assert near["word_problems finding"] in ("INCONCLUSIVE", "PASS")
    assert near["word_problems tests"] == "6"
    alone = read_json(made / "out/runs/near/report.json")
    found = {one["verdict"]["task"]: one["verdict"]["paired"]["finding"] for one in alone["tasks"]}
    assert found["word_problems"] in ("FAIL", "SMALL_DROP")


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("rule", ["noninferiority", "paired", "classic"])
def test_below_a_table_stand_rule_margin_and_correction(rule, name, made):
    margin = () if rule == "classic" else ("--margin", "5")
    text = _flat(_export(f"{made}/out --format {name} --verdict", rule, *margin))
    assert {
        "noninferiority": "verdicts by noninferiority with a margin of 5.0 points, not corrected",
        "paired": "verdicts by paired with a margin of 5.0 points, corrected by Holm over 6 tests",
        "classic": "verdicts by classic with thresholds 15.0 to 18.4 points from the",
    }[rule] in text
    assert "Holm over 6 tests of the suite" in text


def test_runs_outside_of_a_suite_are_corrected_over_their_table(made, tmp_path):
    for name in DAMAGES:
        shutil.copytree(made / "out/runs" / name, tmp_path / "loose" / name)
    near = _rows(tmp_path / "loose")["near"]
    assert near["word_problems tests"] == "6"
    assert float(near["word_problems p holm"]) == pytest.approx(4 * float(near["word_problems p"]))
    assert near["word_problems finding"] in ("INCONCLUSIVE", "PASS")
    text = _flat(_export(f"{tmp_path}/loose --format table"))
    assert "Holm over 6 tests of this table, one-sided" in text
    text = _export(f"{tmp_path}/loose/near --format csv")
    [one] = csv.DictReader(io.StringIO(text, newline=""))
    assert one["word_problems tests"] == "2"
    assert float(one["word_problems p holm"]) == pytest.approx(2 * float(one["word_problems p"]))
    assert one["word_problems finding"] == "FAIL"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("more", [(), ("--differences",), ("--differences", "--baseline", "bf16")])
def test_a_run_that_an_error_ended_is_an_error_in_every_format(name, more, made):
    text = _flat(_export(f"{made}/out --format {name}", *more))
    assert "INTEGRATION TEST" not in text
    assert "cannot be reached" in text or "ERROR" in text
    if name != "csv":
        assert re.search(r"lost: .*no (value|difference): .*(ERROR|reach)", text)


def test_each_missing_difference_has_its_own_reason(made, tmp_path):
    word = "word_problems"
    shutil.copytree(made / "out/runs/bf16", tmp_path / "runs/bf16")
    _run(tmp_path / "runs/alone", "--no-reference", SET[0], tasks=word)
    _run(tmp_path / "runs/part", "--shard", "1/2", "--no-reference", SET[0], tasks=word)
    rows = _rows(tmp_path / "runs", "--differences")
    told = {
        run: {text for column, text in row.items() if column.endswith("no difference because")}
        for run, row in rows.items()
    }
    assert any(why.startswith("NO REFERENCE: ") for why in told["alone"])
    assert any(why.startswith("SHARD: a shard is not judged") for why in told["part"])
    for name in TEXTS:
        text = _flat(_export(f"{tmp_path}/runs --differences --format {name}"))
        assert "no difference: NO REFERENCE" in text
        assert "no difference: SHARD: a shard is not judged" in text


@pytest.mark.parametrize("name", FORMATS)
def test_a_subset_is_paired_with_the_whole_on_their_common_prompts(name, made, tmp_path):
    whole, word = made / "out/runs/bf16", "word_problems"
    ids = list(_read_lines(whole / f"prompts/{word}.jsonl"))[10:30]
    part = tmp_path / "runs/part"
    flags = ("--no-reference", SET[0], "--set", "launcher.damage=0.9")
    _run(part, "--samples", ",".join(ids), *flags, tasks=word)
    shutil.copytree(whole, tmp_path / "runs/whole")
    asked = (tmp_path / "runs", "--differences", "--baseline", "whole")
    text = _flat(_export(f"--format {name}", *asked))
    if name != "csv":
        assert "on the 20 prompts that both runs asked" in text
        assert "named by the user: p and stars do not hold if they were chosen by how" in text
        return
    row = _rows(*asked)["part"]
    [head] = {column.removesuffix(" difference") for column in row if column.endswith("ifference")}
    assert row[f"{head} common prompts"] == "20"
    scores = [_read_lines(run / f"scores/{word}.jsonl") for run in (whole, part)]
    before, after = (sum(one[name]["value"] for name in ids) for one in scores)
    assert float(row[f"{head} difference"]) == pytest.approx(5 * (after - before))
    assert float(row[f"{head} reference"]) == pytest.approx(5 * before)
    assert row[f"{head} samples named"] == "yes"


@pytest.mark.parametrize("name", FORMATS)
def test_p_of_samples_that_were_named_comes_with_its_doubt(name, made, tmp_path):
    """The wrong answers of a damaged night are asked again, and the drop looks proven."""
    flags = ("--references-dir", made / "refs", SET[0], "--set", "launcher.damage=0.3")
    _run(tmp_path / "night", *flags, tasks="word_problems")
    wrong = serve_eval(f"show {tmp_path}/night --wrong --all --json").stdout
    (tmp_path / "wrong.json").write_text(wrong)
    again = ("--verdict", "paired", "--samples", tmp_path / "wrong.json", "-o", tmp_path / "again")
    asked = ("run", "--launcher", "simulated", "-m", MODEL, "-t", "word_problems", *flags)
    summary = tmp_path / "summary.md"
    done = serve_eval(*asked, *again, GITHUB_STEP_SUMMARY=str(summary), GITHUB_ACTIONS="true")
    said = "verdict says nothing of the model and p does not hold: asked again, such scores change"
    assert said in " ".join(done.stdout.split())
    assert said in summary.read_text()
    text = _flat(_export(f"{tmp_path}/again --format {name}"))
    if name == "csv":
        [row] = csv.DictReader(io.StringIO(_export(f"{tmp_path}/again --format {name}")))
        assert row["word_problems samples named"] == "yes"
    else:
        assert "named by the user: p, findings and the verdict do not hold if they were" in text


def test_runs_with_other_sampling_seeds_are_one_row_with_its_spread(tmp_path):
    flags = ("--no-reference", SET[0], "--set", "word_problems.temperature=0.8")
    for seed in ("1", "2", "3"):
        to = tmp_path / f"runs/fp8-seed{seed}"
        _run(to, *flags, "--set", f"protocol.seed={seed}", tasks="word_problems")
    _run(tmp_path / "runs/bf16", *flags, tasks="word_problems")
    rows = _rows(tmp_path / "runs")
    assert sorted(rows) == ["bf16", "fp8"]
    assert {column for column in rows["fp8"] if column.endswith(" value")} == {
        "word_problems value"
    }
    assert rows["fp8"]["word_problems other runs"] == "0"
    text = _flat(_export(f"{tmp_path}/runs --format latex"))
    assert "the mean over sampling seeds 1, 2, 3: sd 0.0" in text
    assert "the answers with sampling seeds 1, 2, 3 are the same texts: they are one draw" in text
    each = _rows(tmp_path / "runs", "--all")
    assert [each[f"fp8-seed{seed}"]["sampling seed"] for seed in "123"] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--set", "protocol.seed=7"),
            "the server may ignore or repeat its seed, or keep its replies",
        ),
        ((), "the server may ignore or repeat its seed, or keep its replies"),
        (("--set=word_problems.temperature=0",), "at temperature 0 a server may choose alike"),
        (("--set", "protocol.seed=7", "--set=launcher.varied=true"), ""),
        (("--set=launcher.varied=true",), ""),
    ],
)
def test_repeats_that_are_one_draw_are_named(flags, said, tmp_path):
    hot = ("--no-reference", SET[0], "--repeats", "3", "--set", "word_problems.temperature=0.8")
    printed = _run(tmp_path / "r", *hot, *flags, tasks="word_problems")
    report = read_json(tmp_path / "r/report.json")
    [verdict] = [task["verdict"] for task in report["tasks"]]
    told = [line for line in verdict["warnings"] if line.startswith("one_draw: ")]
    noted = "no independent draws" in _flat(_export(f"{tmp_path}/r --format markdown"))
    if not said:
        assert (told, "one_draw: " in printed, noted) == ([], False, False)
        return
    assert said in told[0]
    assert said in printed
    assert noted


def test_collect_has_the_verdict_of_the_suite_and_names_what_it_lacks(made):
    done = serve_eval(f"runs table {made}/out")
    rows = list(csv.DictReader(io.StringIO(done.stdout, newline="")))
    report = read_json(made / "out/suite_report.json")
    judged = {(row["run"], row["task"]): row for row in report["rows"]}
    assert len(rows) == len(judged) == 8
    for row in rows:
        suite = judged[Path(row["source"]).name, row["task"]]
        assert row["suite_verdict"] == suite["outcome"]
        assert row["reason"] == "; ".join(suite["reasons"])
        if suite["p"] is None:
            assert (row["value"], row["verdict"], row["p"], row["p_holm"]) == ("", "ERROR", "", "")
            assert row["rule"] == ""  # Nothing was judged.
            continue
        assert float(row["p"]) == pytest.approx(suite["p"], rel=1e-5)
        assert float(row["p_holm"]) == pytest.approx(suite["p_holm"], rel=1e-5)
        assert (row["tests"], row["finding"]) == ("6", suite["finding"])
    assert f"an error ended {made / 'out/runs/lost'}: its rows have no value" in done.stderr
    assert "left out" not in done.stderr
    alone = serve_eval(f"runs table {made}/first").stdout
    [one, _] = csv.DictReader(io.StringIO(alone, newline=""))
    assert (one["suite_verdict"], one["p_holm"], one["verdict"]) == ("", "", "NO REFERENCE")


def test_compare_pairs_a_subset_with_the_whole(made, tmp_path):
    whole, word = made / "out/runs/bf16", "word_problems"
    _run(tmp_path / "whole", "--no-reference", SET[0], tasks=word)
    ids = list(_read_lines(whole / f"prompts/{word}.jsonl"))[10:30]
    flags = ("--no-reference", SET[0], "--set", "launcher.damage=0.9")
    _run(tmp_path / "part", "--samples", ",".join(ids), *flags, tasks=word)
    done = serve_eval(f"compare {tmp_path}/whole {tmp_path}/part -o {tmp_path}/c", exits=1)
    [task] = read_json(tmp_path / "c/comparison.json")["tasks"]
    scores = [_read_lines(tmp_path / run / f"scores/{word}.jsonl") for run in ("whole", "part")]
    values = [5 * sum(one[name]["value"] for name in ids) for one in scores]
    assert [task[side]["value"] for side in ("a", "b")] == pytest.approx(values)
    assert (task["verdict"]["paired"]["pairs"], task["a"]["planned"]) == (20, 20)
    said = "the figures are of the 20 prompts that both asked, of 60 of A and 20 of B"
    assert said in " ".join(done.stdout.split())
    judged = "serve-eval compare judged B against A by pairs: word_problems FAIL"
    assert judged in _flat(_export(f"{tmp_path}/c --format markdown")).replace(" _", "_")
    other = [name for name in _read_lines(whole / f"prompts/{word}.jsonl") if name not in ids][:12]
    _run(tmp_path / "rest", "--samples", ",".join(other), *flags, tasks=word)
    serve_eval(
        f"compare {tmp_path}/rest {tmp_path}/part -o {tmp_path}/d",
        exits=3,
        tells="the two runs asked no common prompt",
    )


def test_compare_pairs_chat_with_text_if_the_user_allows_it(tmp_path):
    word = "word_problems"
    flags = ("--no-reference", "--set", f"{word}.num_samples=40")
    _run(tmp_path / "text", *flags, tasks=word)
    damaged = ("--set", "launcher.damage=0.9")
    _run(
        tmp_path / "chat",
        *flags,
        *damaged,
        "--set",
        "protocol.apply_chat_template=true",
        tasks=word,
    )
    allowed = "--allow-mismatch apply_chat_template --allow-mismatch stop"
    serve_eval(
        f"compare {tmp_path}/text {tmp_path}/chat -o {tmp_path}/no",
        exits=3,
        tells="apply_chat_template is false for A and true for B",
    )
    serve_eval(f"compare {tmp_path}/text {tmp_path}/chat -o {tmp_path}/c {allowed}", exits=1)
    [task] = read_json(tmp_path / "c/comparison.json")["tasks"]
    assert task["verdict"]["paired"]["pairs"] == 40
