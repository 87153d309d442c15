"""Runs and suites that end once a FAIL is certain: what they ask, say and keep."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.evaluation.certain_fail import stands
from serve_eval.evaluation.unfinished import take_proven
from serve_eval.schema import BudgetEnd, VerdictOutcome
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.workflows.suite.test_judgement import _gate, _verdict

pytestmark = pytest.mark.usefixtures("simulated_here")

N = 200
SIZES = f"--set gsm8k.num_samples={N} --set mmlu.num_samples={N}"


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


@pytest.fixture(scope="module")
def pairs(data_root: Path, tmp_path_factory, simulated_here) -> Path:
    """Return references with the scores of one sound run of each task."""
    folder = tmp_path_factory.mktemp("pairs")
    serve_eval(
        "run --launcher simulated --no-reference --tasks gsm8k,mmlu --set launcher.accuracy=0.9"
        f" {SIZES} --dataset-root {data_root} -o {folder}/sound",
        exits=3,
    )
    serve_eval(
        "references register", folder / "sound", "--references-dir", folder / "refs", exits=0
    )
    return folder / "refs"


def _write_suite(file: Path, data_root: Path, pairs: Path, *damages: float, early: bool = False):
    plans = [
        f"  - {{name: r{i}, launcher: {{simulated: {{accuracy: 0.9, damage: {damage}}}}}}}"
        for i, damage in enumerate(damages)
    ]
    lines = [
        f"defaults: {{dataset_root: {data_root}, references_dir: {pairs}, model: simulated,",
        f"  tasks: [{{gsm8k: {{num_samples: {N}}}}}], limits: {{concurrency: 8}},",
        f"  verdict: {{paired: {{margin: 5}}}}, early_stop: {str(early).lower()}}}",
        "plans:",
        *plans,
    ]
    file.write_text("\n".join(lines))


def test_a_drop_that_pairs_prove_whatever_is_left_ends_a_run(data_root, pairs, tmp_path):
    out = tmp_path / "out"
    serve_eval(
        "run --launcher simulated --set launcher.accuracy=0.9 --set launcher.damage=0.6"
        f" --dataset-root {data_root} --references-dir {pairs} --concurrency 8 {SIZES}"
        " --tasks gsm8k,mmlu --verdict paired --set verdict.margin=5"
        f" --end-when-certain -o {out}",
        exits=1,
    )
    gsm8k, mmlu = (task["verdict"] for task in _report(out)["tasks"])
    assert (gsm8k["outcome"], mmlu["outcome"]) == ("FAIL", "NOT ASKED")
    assert gsm8k["budget"]["unasked"] > 0.3 * N
    assert 2 * gsm8k["paired"]["p"] <= 0.05
    assert "with the others at their best, p is" in " ".join(gsm8k["warnings"])
    assert (gsm8k["tests"], gsm8k["p_holm"]) == (2, pytest.approx(2 * gsm8k["paired"]["p"]))
    serve_eval("run --resume", out, "--no-end-when-certain", exits=1)
    whole = [task["verdict"] for task in _report(out)["tasks"]]
    assert [one["outcome"] for one in whole] == ["FAIL", "FAIL"]
    assert whole[0]["paired"]["p"] <= gsm8k["paired"]["p"]


def test_a_suite_says_what_it_cost_and_what_asks_the_rest(data_root, pairs, tmp_path):
    file, out = tmp_path / "nightly.yaml", tmp_path / "out"
    _write_suite(file, data_root, pairs, 0.6, 0.0)
    dry = serve_eval(f"run {file} --dry-run --max-tokens-total 50000", exits=0).stdout
    assert "of which the bound of 50,000 pays for" in dry
    done = serve_eval("run", file, "-o", out, "--end-when-certain", exits=1)
    assert "suite nightly: 2 runs, 2 tasks: 1 FAIL, 1 NOT ASKED" in done.stdout
    assert "end_when_certain: not asked, since r0/gsm8k is FAIL" in done.stdout
    cost = read_json(out / "suite_report.json")["cost"]
    assert f" cost     {cost['prompt_tokens'] + cost['generated_tokens']:,} tokens" in done.stdout
    assert f"serve-eval run --resume {out} --no-end-when-certain" in done.stdout
    junit = (out / "junit.xml").read_text()
    assert 'failures="1" errors="0" skipped="1"' in junit
    assert "not asked, since r0/gsm8k is FAIL</skipped>" in junit
    assert "**NOT ASKED**" in (out / "summary.md").read_text()
    assert "NOT ASKED" in (out / "report.html").read_text()
    whole = serve_eval("run --resume", out, "--no-end-when-certain", exits=1)
    assert "2 tasks: 1 FAIL, 1 PASS" in whole.stdout
    assert _asked(out / "runs/r0", "gsm8k") == _asked(out / "runs/r1", "gsm8k") == N


def test_the_looks_of_a_suite_share_the_alpha_of_one_test(data_root, pairs, tmp_path):
    file, out = tmp_path / "nightly.yaml", tmp_path / "out"
    _write_suite(file, data_root, pairs, 0.0, 0.0, 0.0, 0.0, early=True)
    serve_eval("run", file, "-o", out, exits=None)
    for run in range(4):
        early = _report(out / f"runs/r{run}")["tasks"][0]["verdict"]["early"]
        assert early["alpha"] == pytest.approx(0.5 * 0.05 / 4)
    again = serve_eval("judge", out, "--json", exits=None)
    assert '"NOT ASKED"' not in again.stdout


@pytest.mark.parametrize(("p", "tests", "found"), [(0.02, 2, True), (0.02, 3, False)])
def test_a_fail_stands_at_its_part_of_alpha(p, tests, found):
    assert stands(_gate("gsm8k", p, False), tests) is found
    assert stands(_verdict("gsm8k", VerdictOutcome.FAIL), tests)
    assert not stands(_gate("gsm8k", 0.9, True), tests)


@pytest.mark.parametrize(
    ("method", "inflation", "found"),
    [
        ("mcnemar_midp", 1.0, "FAIL"),
        ("permutation", 1.0, "INCONCLUSIVE"),
        ("mcnemar_midp", 1.1, "INCONCLUSIVE"),
    ],
)
def test_only_mcnemars_test_is_certain_of_what_was_not_asked(method, inflation, found):
    end = BudgetEnd(ended_by="end_when_certain", planned=200, asked=90, missing=0, unasked=110)
    pairs = _gate("gsm8k", 0.001, False)
    assert pairs.paired is not None
    pairs = replace(pairs, paired=replace(pairs.paired, method=method, inflation=inflation))
    judged = take_proven(_verdict("gsm8k", VerdictOutcome.INCONCLUSIVE), pairs, end)
    assert judged.outcome == found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-tokens-total", "0"), "expected a number above 0"),
        (("--set", "limits.max_time_s=soon"), "limits.max_time_s: expected seconds above 0"),
        (("--set", "limits.max_attempts=2"), "each plan of a suite says this itself"),
    ],
)
def test_wrong_bounds_of_a_suite_are_refused(data_root, pairs, tmp_path, words, said):
    file = tmp_path / "nightly.yaml"
    _write_suite(file, data_root, pairs, 0.0)
    serve_eval("run", file, *words, exits=2, tells=said)
