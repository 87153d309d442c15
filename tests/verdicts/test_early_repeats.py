"""Test runs with repeats that end early: they ask rounds of all prompts."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve_eval.cli.app import app
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.schema import EarlyStop, Limits, Plan, Report, Spec, VerdictOutcome
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import LOOKS_FILE
from serve_eval.storage.journal import Journal
from serve_eval.workflows.references import register

pytestmark = pytest.mark.usefixtures("simulated_here")

N, K = 200, 4
ENDS = {0.0: VerdictOutcome.PASS, 0.4: VerdictOutcome.FAIL}


@pytest.fixture(scope="module")
def judged(data_root: Path, tmp_path_factory, simulated_here: None) -> Plan:
    """Return a plan of 200 prompts, four times each, with a reference of four runs."""
    plan = Plan(
        model="my-org/my-model",
        launcher=Spec(name="simulated", options={"accuracy": 0.8, "flip_rate": 0.06, "seed": 3}),
        tasks=(Spec(name="gsm8k", options={"num_samples": N}),),
        dataset_roots=(str(data_root),),
        no_reference=True,
        repeats=K,
        limits=Limits(order_seed=1),  # of another order, one sound run in some hundreds ends late
    )
    folder = tmp_path_factory.mktemp("judged")
    _run(plan, folder / "reference", run=0)
    _run(replace(plan, repeats=1), folder / "single", run=7)
    register([folder / "reference"], folder / "refs")
    register([folder / "single"], folder / "one")
    rule = Spec(name="noninferiority", options={"margin": 9.0})
    return replace(
        plan,
        no_reference=False,
        references_dir=str(folder / "refs"),
        early_stop=0.01,
        verdict=rule,
    )


def _run(plan: Plan, folder: Path, **more: object) -> Report:
    options = {**plan.launcher.options, "run": 1, **more}
    return asyncio.run(
        evaluate(replace(plan, launcher=Spec(name="simulated", options=options)), folder)
    )


def _early(report: Report) -> EarlyStop:
    told = report.tasks[0].verdict.early
    assert told is not None
    return told


@pytest.mark.parametrize("damage", list(ENDS))
@pytest.mark.parametrize("rule", ["noninferiority", "paired", "classic"])
def test_a_clear_case_ends_with_the_verdict_of_the_whole_run(
    judged: Plan, tmp_path, rule: str, damage: float
):
    """The whole run is the rest of the same one."""
    options = {} if rule != "noninferiority" else judged.verdict.options
    plan = replace(judged, verdict=Spec(name=rule, options=options), rule_named=True)
    report = _run(plan, tmp_path / "out", damage=damage)
    told = _early(report)
    assert report.tasks[0].verdict.outcome is ENDS[damage]
    assert (told.planned, told.stopped) == (N * K, True)
    assert told.looked_at < N * K / 2
    assert told.rounds == (None if rule == "classic" else K)
    again = judge_again(run_folder.read_plan(tmp_path / "out"), tmp_path / "out")
    assert again.tasks[0].verdict == report.tasks[0].verdict
    whole = _run(replace(plan, early_stop=None), tmp_path / "out", damage=damage)
    assert whole.tasks[0].result.scored == N * K
    assert whole.tasks[0].verdict.outcome is ENDS[damage]


def test_a_round_asks_every_prompt_before_the_next_one_begins(judged: Plan, tmp_path):
    report = _run(judged, tmp_path / "out")
    (file,) = (tmp_path / "out" / "samples").glob("*.jsonl")
    with Journal(file) as journal:
        asked = Counter(record.id.partition("#")[0] for record in journal.records())
    rounds, rest = divmod(_early(report).looked_at, N)
    assert rounds == 0 or min(asked.values()) >= rounds
    # The requests that were in flight when the verdict was certain may belong to the next round.
    assert N * rounds + rest <= sum(asked.values()) < N * K / 2
    assert max(asked.values()) <= rounds + 2


def test_a_reference_of_one_run_is_shared_by_all_rounds(judged: Plan, tmp_path):
    one = str(Path(judged.references_dir or "").parent / "one")
    report = _run(replace(judged, references_dir=one), tmp_path / "out")
    told = _early(report)
    assert (told.decision, told.stopped, told.rounds) == ("PASS", True, K)
    assert told.looked_at < N * K / 2


def test_what_the_looks_used_is_not_given_back(judged: Plan, tmp_path):
    """Neither without the early stop, nor with more repeats, whose looks would be others."""
    out = tmp_path / "out"
    close = replace(judged, verdict=Spec(name="noninferiority", options={"margin": 1.0}))
    verdict = _run(close, out).tasks[0].verdict
    assert (verdict.early is not None, verdict.paired.alpha) == (True, 0.025)
    assert (out / LOOKS_FILE).read_text().count(f"repeats: {K}") == 1
    plain = _run(replace(close, early_stop=None), out).tasks[0].verdict
    assert (plain.early, plain.paired.alpha) == (None, 0.025)
    more = _run(replace(close, repeats=K + 1), out).tasks[0].verdict
    assert (more.early, more.paired.alpha) == (None, 0.025)
    assert any(f"looked at {K} answers per prompt" in one for one in more.warnings)


def test_an_interrupted_run_goes_on_in_its_order_and_may_still_stop(judged: Plan, tmp_path):
    """Half of the answers are removed, as if the run had been killed."""
    whole, out = _run(judged, tmp_path / "whole"), tmp_path / "whole"
    (file,) = (out / "samples").glob("*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: len(lines) // 2]))
    again = _run(judged, out)
    assert _early(again).order_seed == _early(whole).order_seed
    assert (_early(again).decision, _early(again).looked_at) == ("PASS", _early(whole).looked_at)


def test_too_many_missing_answers_decide_nothing(judged: Plan, tmp_path):
    plan = replace(judged, limits=replace(judged.limits, max_error_rate=1.0))
    report = _run(plan, tmp_path / "out", failure_rate=0.06, failure_kind="wrapped_400")
    told = _early(report)
    assert (told.decision, told.looked_at) == (None, N * K)
    assert report.tasks[0].verdict.outcome is VerdictOutcome.INCONCLUSIVE


def test_the_report_says_that_it_asked_rounds(judged: Plan, tmp_path):
    _run(judged, tmp_path / "out")
    said = CliRunner().invoke(app, ["show", str(tmp_path / "out"), "--verbose"]).output
    told = CliRunner().invoke(app, ["judge", str(tmp_path / "out")]).output
    assert f"in rounds ({K} in all)" in " ".join(told.split()), said
    assert "a drop of 9.0 points is ruled out" in " ".join(told.split())
