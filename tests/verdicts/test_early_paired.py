"""Test paired rules that decide early.

The alpha that their looks spend is missing at the end.
"""

import asyncio
import io
import math
from array import array
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from serve_eval.cli.app import app
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.early_stop import EarlyStopping, watch
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.plan.plan_file import to_file
from serve_eval.report.document import print_document
from serve_eval.report.run.document import make_run_document
from serve_eval.schema import EarlyStop, Plan, Spec, VerdictOutcome
from serve_eval.stats.early_paired import EarlyPaired
from serve_eval.stats.early_stop import EarlyClassic
from serve_eval.stats.onset import DriftHold
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import LOOKS_FILE
from serve_eval.storage.report_file import read_report
from serve_eval.storage.sessions import read_sessions
from serve_eval.verdicts import pairing, reference_samples
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore

pytestmark = pytest.mark.usefixtures("simulated_here")

ALPHA = 0.05
N = 400


@pytest.fixture(scope="module")
def judged(data_root, tmp_path_factory, simulated_here):
    """Return a plan of 400 prompts with a reference that was registered from a run of them."""
    plan = Plan(
        model="my-org/my-model",
        launcher=Spec(name="simulated", options={"accuracy": 0.8, "flip_rate": 0.02, "seed": 3}),
        tasks=(Spec(name="gsm8k", options={"num_samples": N}),),
        dataset_roots=(str(data_root),),
        no_reference=True,
    )
    folder = tmp_path_factory.mktemp("judged")
    _run(plan, folder / "reference", run=0)
    register([folder / "reference"], folder / "refs")
    return replace(plan, no_reference=False, references_dir=str(folder / "refs"), early_stop=0.01)


def _run(plan, folder, **more):
    options = {**plan.launcher.options, "run": 1, **more}
    return asyncio.run(
        evaluate(replace(plan, launcher=Spec(name="simulated", options=options)), folder)
    )


def _verdict(report):
    return report.tasks[0].verdict


def _early(report):
    told = _verdict(report).early
    assert told is not None
    return told


def _said(report, folder):
    buffer = io.StringIO()
    print_document(
        make_run_document(report, folder), Console(file=buffer, width=10_000), verbose=True
    )
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("rule", "options", "damage", "outcome"),
    [
        ("noninferiority", {"margin": 8.0}, 0.0, VerdictOutcome.PASS),
        ("noninferiority", {"margin": 8.0}, 0.4, VerdictOutcome.FAIL),
        ("paired", {}, 0.0, VerdictOutcome.PASS),
        ("paired", {"margin": 3.0}, 0.3, VerdictOutcome.FAIL),
    ],
)
def test_a_clear_case_stops_at_half_of_alpha(
    judged,
    tmp_path,
    rule,
    options,
    damage,
    outcome,
):
    plan = replace(judged, verdict=Spec(name=rule, options=options))
    report = _run(plan, tmp_path / "out", damage=damage)
    verdict, told = _verdict(report), _early(report)
    assert (verdict.outcome, verdict.rule, told.rule, told.decision) == (
        outcome,
        rule,
        rule,
        outcome.value,
    )
    assert (told.stopped, told.paired, told.alpha) == (True, True, ALPHA / 2)
    assert told.saved == report.tasks[0].result.spared > 0
    assert (verdict.evaluated, verdict.paired) == (None, None)
    # Without a margin of its own, the rule uses that of the classic rule at the whole alpha.
    classic = verdict.reference - verdict.threshold
    assert told.margin == pytest.approx(options.get("margin", classic))
    done = "ruled out" if outcome is VerdictOutcome.PASS else "proven"
    assert f"points is {done}" in (said := _said(report, tmp_path / "out"))
    assert (
        "assumes that the remaining samples would score like those asked: an endpoint that degrades"
        " after the stop goes unnoticed" in said
    )
    assert (
        judge_again(run_folder.read_plan(tmp_path / "out"), tmp_path / "out").tasks[0].verdict
        == verdict
    )


def test_a_run_that_was_allowed_to_stop_is_judged_at_the_rest_of_alpha(judged, tmp_path):
    plan = replace(judged, verdict=Spec(name="paired", options={"margin": 1.2}))
    report, whole = (
        _run(plan, tmp_path / "out"),
        _run(replace(plan, early_stop=None), tmp_path / "whole"),
    )
    verdict, other = _verdict(report), _verdict(whole)
    assert (_early(report).decision, other.early) == (None, None)
    assert (verdict.paired.alpha, other.paired.alpha) == (ALPHA / 2, ALPHA)
    assert verdict.paired.p == other.paired.p
    assert verdict.paired.lower < other.paired.lower
    same = ("threshold", "theta", "alpha", "beta")
    assert [getattr(verdict, name) for name in same] == [getattr(other, name) for name in same]
    said = "judged at alpha 0.025: the looks for an early stop used the rest of 0.05"
    assert said in verdict.warnings
    assert [line for line in verdict.warnings if line != said] == list(other.warnings)
    assert "(97.5 % confidence)" in _said(report, tmp_path / "out")
    assert "(95 % confidence)" in _said(whole, tmp_path / "whole")


def test_the_margin_of_the_paired_rule_is_that_of_the_whole_alpha(judged, tmp_path):
    """A drop too close to the classic margin for an early decision: the run goes to its end."""
    plan = replace(judged, verdict=Spec(name="paired"), limits=replace(judged.limits, order_seed=1))
    report = _run(plan, tmp_path / "out", damage=0.05)
    verdict = _verdict(report)
    assert verdict.paired.alpha == ALPHA / 2
    assert verdict.paired.margin == pytest.approx(verdict.reference - verdict.threshold)
    assert _early(report).margin == pytest.approx(verdict.paired.margin)


def test_what_the_looks_spent_stays_spent_when_the_run_goes_on_without_them(judged, tmp_path):
    plan = replace(judged, verdict=Spec(name="noninferiority", options={"margin": 8.0}))
    out = tmp_path / "out"
    assert _early(_run(plan, out)).stopped
    assert run_folder.read_looks(out) == {"gsm8k": "noninferiority"}
    # Resumed with the early stop it asks nothing more; without it, it asks all the rest.
    assert _early(_run(plan, out)).stopped
    assert len(read_sessions(out)) == 1
    rest = _run(replace(plan, early_stop=None), out)
    verdict = _verdict(rest)
    assert (rest.tasks[0].result.scored, verdict.early) == (N, None)
    assert verdict.paired.alpha == ALPHA / 2
    assert any(line.startswith("judged at alpha 0.025") for line in verdict.warnings)
    # The other paired rule spends the same alpha; the classic one has its own guarantee.
    saved, classic = run_folder.read_plan(out), Spec(name="classic")
    by_pairs = _verdict(judge_again(replace(saved, verdict=Spec(name="paired")), out)).paired
    by_classic = _verdict(judge_again(replace(saved, verdict=classic, rule_named=True), out)).paired
    assert (by_pairs.alpha, by_classic.alpha) == (ALPHA / 2, ALPHA)


def test_the_command_line_runs_shows_resumes_and_judges_again(judged, tmp_path):
    out, file = tmp_path / "out", tmp_path / "plan.yaml"
    content = {**to_file(replace(judged, early_stop=None)), "verdict": "classic"}
    file.write_bytes(msgspec.yaml.encode(content))
    flags = [str(file), "--verdict", "noninferiority", "--margin", "8", "--early-stop"]
    shown = CliRunner().invoke(app, ["run", *flags, "--dry-run"]).output
    assert (
        "early stop: alpha 0.025 for the interim looks, 0.025 for the verdict at the end of the run"
        in shown
    )
    assert f"at most {N} requests in total" in shown
    told = CliRunner().invoke(app, ["run", *flags, "-o", str(out)])
    assert told.exit_code == 0
    assert "a drop of 8.0 points is ruled out" in told.output
    again = CliRunner().invoke(app, ["judge", str(out)])
    assert (again.exit_code, "a drop of 8.0 points is ruled out" in again.output) == (0, True)
    other = CliRunner().invoke(app, ["judge", str(out), "--verdict", "classic"])
    assert "early stop" not in other.output
    rest = CliRunner().invoke(app, ["run", "--resume", str(out), "--no-early-stop"])
    assert rest.exit_code == 0
    assert "judged at alpha 0.025" in rest.output


def test_several_reference_runs_are_averaged(judged, tmp_path):
    plain = replace(judged, references_dir=None, no_reference=True, early_stop=None)
    for i in range(2):
        _run(plain, tmp_path / f"run{i}", run=10 + i)
    register([tmp_path / f"run{i}" for i in range(2)], tmp_path / "refs")
    plan = replace(
        judged,
        references_dir=str(tmp_path / "refs"),
        verdict=Spec(name="noninferiority", options={"margin": 6.0}),
    )
    report = _run(plan, tmp_path / "out")
    assert (_early(report).decision, _early(report).stopped) == ("PASS", True)


def test_with_too_many_answers_missing_nothing_is_decided_early(judged, tmp_path):
    plan = replace(judged, verdict=Spec(name="noninferiority", options={"margin": 8.0}))
    plan = replace(plan, limits=replace(plan.limits, max_error_rate=1.0))
    report = _run(plan, tmp_path / "out", failure_rate=0.06, failure_kind="wrapped_400")
    told = _early(report)
    assert (told.decision, told.looked_at) == (None, N)
    assert told.missing > 8
    assert _verdict(report).outcome is VerdictOutcome.INCONCLUSIVE


def test_a_reference_without_scores_does_not_stop(judged):
    (p,) = prepare(replace(judged, verdict=Spec(name="paired")))
    assert p.reference is not None
    alone = replace(p, reference=replace(p.reference, runs=None))
    for repeats in (1, 2):
        accumulator = ScoreAccumulator(p.task, p.dataset.samples, repeats=repeats)
        assert watch(alone, accumulator, eps=0.01, seed=0) == (
            None,
            "no early stop: the reference has no scores per sample",
        )


def test_the_margins_and_the_level_are_those_of_the_rule(judged):
    (p,) = prepare(replace(judged, verdict=Spec(name="paired")))
    for spec, points in (
        (Spec(name="noninferiority"), 1.0),
        (Spec(name="noninferiority", options={"margin": 2.5}), 2.5),
        (Spec(name="paired", options={"margin": 2.5}), 2.5),
    ):
        accumulator = ScoreAccumulator(p.task, p.dataset.samples)
        prefix, _ = watch(replace(p, rule=spec), accumulator, eps=0.01, seed=0)
        test = prefix._test
        assert isinstance(test, EarlyPaired)
        assert (100 * test.margin, test.alpha, test.eps) == (pytest.approx(points), ALPHA / 2, 0.01)


def test_a_damaged_record_of_the_looks_says_how_to_mend_it(tmp_path):
    assert run_folder.read_looks(tmp_path) == {}
    run_folder.note_looks(tmp_path, {"a": "paired"})
    run_folder.note_looks(tmp_path, {"b": "paired"})
    assert run_folder.read_looks(tmp_path) == {"a": "paired", "b": "paired"}
    (tmp_path / LOOKS_FILE).write_text("[]")
    with pytest.raises(RunFolderError, match=r"looks\.json cannot be read") as caught:
        run_folder.read_looks(tmp_path)
    assert "Restore it" in caught.value.hint


def test_reports_from_before_are_still_read():
    old = {
        "eps": 0.01,
        "order_seed": 1,
        "paired": True,
        "planned": 10,
        "looked_at": 5,
        "missing": 0,
        "stopped": True,
        "decision": "PASS",
        "estimate": 80.0,
        "saved": 5,
        "log_wealth_pass": 5.0,
        "log_wealth_fail": -1.0,
    }
    told = msgspec.convert(old, EarlyStop)
    assert (told.rule, told.alpha, told.held) == ("classic", None, 0)


def test_scoring_again_gives_no_alpha_back(judged, tmp_path):
    plan = replace(judged, verdict=Spec(name="paired", options={"margin": 1.2}))
    verdict = _verdict(_run(plan, tmp_path / "out"))
    _run(replace(plan, early_stop=None), tmp_path / "out")
    rescore(tmp_path / "out", to=tmp_path / "again")
    again = _verdict(read_report(tmp_path / "again"))
    assert again.paired.alpha == verdict.paired.alpha == ALPHA / 2


def test_a_reference_whose_runs_differ_as_a_whole_stops_no_paired_run_early(judged, tmp_path):
    """The looks cannot allow for run effects.

    They passed a drop of the margin in 33 % of simulated runs.
    """
    for run, accuracy in ((1, 0.8), (2, 0.8), (3, 0.6)):
        _run(
            replace(judged, references_dir=None, no_reference=True, early_stop=None),
            tmp_path / f"r{run}",
            run=run,
            accuracy=accuracy,
        )
    register([tmp_path / f"r{run}" for run in (1, 2, 3)], tmp_path / "refs")
    plan = replace(judged, references_dir=str(tmp_path / "refs"), verdict=Spec(name="paired"))
    (prepared,) = prepare(plan)
    accumulator = ScoreAccumulator(prepared.task, prepared.dataset.samples)
    early, note = watch(prepared, accumulator, eps=0.01, seed=1)
    assert early is None
    assert (
        note
        == "no early stop: the reference's runs differ as a whole, which only the final test can"
        " allow for"
    )
    by_value = replace(prepared, rule=Spec(name="classic"))
    classic, _ = watch(by_value, accumulator, eps=0.01, seed=1)
    assert classic is not None


def test_an_answer_that_did_not_change_is_not_worse_than_the_reference(judged, monkeypatch):
    """The reference stores its scores in 16 bits.

    A slightly higher or lower score would count as a change.
    """
    (prepared,) = prepare(judged)
    scores = [i / 401 for i in range(N)]
    stored = [reference_samples.as_stored(score, 0.0, 1.0) for score in scores]
    assert stored != scores
    seen = []
    add = DriftHold.add

    def noted(hold, value, reference):
        seen.append((value, reference))
        add(hold, value, reference)

    monkeypatch.setattr(DriftHold, "add", noted)
    accumulator = ScoreAccumulator(prepared.task, prepared.dataset.samples)
    monkeypatch.setattr(accumulator, "score", lambda i: scores[i])
    test = EarlyClassic.for_pairs(N, 0.5, eps=0.01)
    EarlyStopping(
        accumulator, lambda: test, range(N), seed=1, higher_is_better=True, before=stored
    ).look()
    assert len(seen) > 100
    assert all(value == reference for value, reference in seen)


def test_a_repeat_without_any_answer_leaves_the_task_unpaired(judged):
    (prepared,) = prepare(judged)
    assert prepared.reference is not None
    runs = [array("d", [1.0] * N), array("d", [math.nan] * N)]
    pairs, why = pairing.with_reference(prepared.task, prepared.dataset, prepared.reference, runs)
    assert pairs is None
    assert "none of the 400 prompts has a score on both sides" in why
