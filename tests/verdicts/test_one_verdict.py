"""Test that every command gives the same verdict, also on a subset of prompts.

This needs a reference with known scores per sample.
"""

import asyncio
import math
import random
from array import array
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from serve_eval.cli._dry_run import facts
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.prepare import prepare
from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    AccuracySpec,
    Aggregation,
    Dataset,
    Plan,
    Reference,
    ReferenceRuns,
    Sample,
    Spec,
    SuiteRun,
    VerdictOutcome,
)
from serve_eval.stats.classic import classic_test
from serve_eval.storage import run_folder
from serve_eval.storage.report_file import read_report
from serve_eval.verdicts import pairing, reference_samples, references
from serve_eval.verdicts.rules.classic import judge as subset_reference_judge
from serve_eval.workflows.compare.verdict import compare_folders
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore
from serve_eval.workflows.suite.judgement import EndedRun, judge
from tests.made_results import make_result

pytestmark = pytest.mark.usefixtures("simulated_here")

TASKS = (
    Spec(name="gsm8k", options={"num_samples": 200}),
    Spec(name="mmlu", options={"num_samples": 150}),
)
STATES = ((0.0, 0.02), (0.03, 0.1), (0.06, 0.05), (0.1, 0.0), (0.4, 0.02))
"""Share of the answers that are damaged, and of those that change without a reason."""


@pytest.mark.parametrize("tasks", [TASKS[:1], TASKS], ids=["one task", "two tasks"])
def test_run_suite_and_compare_have_one_verdict(data_root, tmp_path, tasks):
    alone = Plan(
        model="my-org/my-model",
        launcher=Spec(name="simulated", options={"accuracy": 0.8, "seed": 3}),
        tasks=tasks,
        dataset_roots=(str(data_root),),
        no_reference=True,
    )
    a, names, seen = tmp_path / "a", [spec.name for spec in tasks], set()
    _run(alone, a)
    register([a], tmp_path / "refs")
    plan = replace(alone, no_reference=False, references_dir=str(tmp_path / "refs"))
    for number, (damage, flips) in enumerate(STATES):
        b = tmp_path / str(number)
        report = _run(plan, b, run=1, damage=damage, flip_rate=flips)
        by_run = {task.result.task: task.verdict for task in report.tasks}
        compared = compare_folders(a, b, Spec(name="paired"))
        by_pair = {task.task: task.verdict for task in compared.tasks}
        assert _facts(by_run, names) == _facts(by_pair, names)
        run = SuiteRun(name="b", plan=report.plan)
        suite = judge([EndedRun(run=run, report=report)], (), date(2026, 1, 1))
        assert [one.outcome for one in suite.rows] == [by_run[name].outcome for name in names]
        assert suite.exit_code == compared.exit_code == report.exit_code
        assert {by_run[name].rule for name in names} == {"paired"}
        seen |= {by_run[name].outcome for name in names}
    assert {VerdictOutcome.PASS, VerdictOutcome.FAIL, VerdictOutcome.INCONCLUSIVE} <= seen


def _run(plan, folder, **more):
    options = {**plan.launcher.options, **more}
    return asyncio.run(
        evaluate(replace(plan, launcher=Spec(name="simulated", options=options)), folder)
    )


def _facts(found, names):
    """Return what decides, by task: the outcome, the figures of the pairs, and the correction."""
    facts = []
    for name in names:
        verdict = found[name]
        pairs = verdict.paired
        figures = (pairs.p, pairs.difference, pairs.lower, pairs.margin, verdict.p_holm)
        facts.append(
            (
                *(verdict.outcome, verdict.rule, verdict.tests, pairs.finding),
                *(None if one is None else round(one, 9) for one in figures),
            )
        )
    return facts


MODEL, ALL, ASKED = "my-org/my-model", 300, 60


@pytest.fixture(scope="module")
def plan(data_root, tmp_path_factory):
    """Return a plan of a subset, judged by a reference from two runs of all prompts."""
    folder = tmp_path_factory.mktemp("reference")
    whole = Plan(
        model=MODEL,
        launcher=Spec(name="simulated", options={"accuracy": 0.5, "flip_rate": 0.1}),
        tasks=(Spec(name="gsm8k", options={"num_samples": ALL}),),
        dataset_roots=(str(data_root),),
        no_reference=True,
    )
    for number in range(2):
        _run_subset_reference(whole, folder / str(number), number)
    register([folder / "0", folder / "1"], folder / "refs")
    return replace(whole, no_reference=False, references_dir=str(folder / "refs"), limit=ASKED)


def _run_subset_reference(plan, folder, number):
    options = {**plan.launcher.options, "run": number}
    return asyncio.run(
        evaluate(
            replace(plan, launcher=Spec(name="simulated", options=options)), folder, environ={}
        )
    )


def _registered(plan):
    assert plan.references_dir is not None
    found = references.find("gsm8k", MODEL, AccuracySpec(), [Path(plan.references_dir)])
    assert found is not None
    return found


def _on(plan, dataset):
    """Return the mean of the registered runs on these prompts in points, from their file."""
    found = _registered(plan)
    stored = reference_samples.read(Path(found.file).parent / found.runs.samples, found.runs.sha256)
    places = reference_samples.places(
        stored.keys, [sample_key(sample) for sample in dataset.samples]
    )
    scores = [run[place] for run in stored.runs for place in places if place is not None]
    assert len(scores) == 2 * len(dataset.samples)
    return 100.0 * sum(scores) / len(scores)


def test_every_command_judges_a_subset_by_the_reference_on_its_prompts(plan, tmp_path):
    (p,) = prepare(plan)
    value, registered = _on(plan, p.dataset), _registered(plan).value
    assert abs(value - registered) > 1.0
    threshold = classic_test(ASKED, value, 50.0, 0.05, 0.2, True).threshold
    note = (
        f"the reference has {value:.2f} on these {ASKED} prompts, and {registered:.2f} on all {ALL}"
    )

    shown = facts(p, 1)
    assert (shown["reference"], shown["threshold"]) == (
        pytest.approx(value),
        pytest.approx(threshold),
    )
    assert note in shown["notes"]

    out = tmp_path / "out"
    verdict = _run_subset_reference(plan, out, 3).tasks[0].verdict
    assert (verdict.reference, verdict.threshold) == (
        pytest.approx(value),
        pytest.approx(threshold),
    )
    assert note in verdict.warnings
    assert verdict.evaluated - verdict.reference == pytest.approx(verdict.paired.difference)
    assert judge_again(run_folder.read_plan(out), out).tasks[0].verdict == verdict
    rescore(out, to=tmp_path / "again")
    assert read_report(tmp_path / "again").tasks[0].verdict == verdict

    early = (
        _run_subset_reference(replace(plan, early_stop=0.01), tmp_path / "early", 3)
        .tasks[0]
        .verdict
    )
    assert (early.reference, early.threshold) == (verdict.reference, verdict.threshold)


def test_all_of_the_prompts_are_judged_by_the_registered_value(plan, tmp_path):
    verdict = _run_subset_reference(replace(plan, limit=None), tmp_path / "out", 3).tasks[0].verdict
    assert verdict.reference == _registered(plan).value
    assert not [line for line in verdict.warnings if "on these" in line]


def test_an_explicit_threshold_is_never_moved(plan, tmp_path):
    file = Path(str(plan.references_dir)) / "gsm8k.yaml"
    refs = tmp_path / "refs"
    refs.mkdir()
    (refs / "samples").symlink_to(file.parent / "samples")
    (refs / "gsm8k.yaml").write_text(
        file.read_text().replace("    runs:", "    threshold: 41.5\n    runs:")
    )
    (p,) = prepare(replace(plan, references_dir=str(refs)))
    assert (p.reference.value, p.reference.threshold) == (_registered(plan).value, 41.5)
    assert facts(p, 1)["threshold"] == 41.5
    assert not [line for line in p.notes if "on these" in line]


@pytest.mark.parametrize(
    "change", ["no scores", "a damaged file", "an unknown prompt", "no mean", "as many prompts"]
)
def test_without_the_scores_of_these_prompts_the_registered_value_stays(plan, change):
    (p,) = prepare(replace(plan, limit=ASKED))
    task, samples, found = p.task, list(p.dataset.samples), _registered(plan)
    assert found.runs is not None
    assert pairing.on_these_prompts(task, p.dataset, found)[0].value != found.value
    if change == "no scores":
        found = replace(found, runs=None)
    elif change == "a damaged file":
        found = replace(found, runs=replace(found.runs, sha256="0" * 64))
    elif change == "an unknown prompt":
        samples[7] = Sample(id=samples[7].id, prompt="another", target=samples[7].target)
    elif change == "no mean":
        task = replace(task, aggregation=Aggregation(name="other", of=lambda pairs: 0.0))
    else:
        found = replace(found, runs=replace(found.runs, n=ASKED))
    assert pairing.on_these_prompts(task, replace(p.dataset, samples=samples), found) == (
        found,
        None,
    )


def test_what_the_classic_rule_fails_has_a_proven_drop_on_a_subset_too(tmp_path):
    """Of 300 prompts half are easy.

    The mean of 60 of them is up to 17 points away from that of all.
    """
    task = build_task(Spec(name="gsm8k"))
    samples = [Sample(id=str(i), prompt=f"p{i}", target="1") for i in range(ALL)]
    easy = array("d", (float(i % 2) for i in range(ALL)))
    keys = b"".join(map(sample_key, samples))
    stored = reference_samples.SampleScores(task="gsm8k", lo=0.0, hi=1.0, keys=keys, runs=(easy,))
    sha256 = reference_samples.write(tmp_path / "samples.json", stored)
    runs = ReferenceRuns(values=(50.0,), n=ALL, sigma=50.0, samples="samples.json", sha256=sha256)
    registered = Reference(
        task="gsm8k",
        model="m",
        spec=AccuracySpec(),
        value=50.0,
        runs=runs,
        file=str(tmp_path / "gsm8k.yaml"),
    )
    hypothesis = replace(task.hypothesis, num_samples=ASKED)
    rng, failed = random.Random(2), 0
    for _ in range(300):
        chosen = sorted(rng.sample(range(ALL), ASKED))
        dataset = Dataset(samples=[samples[i] for i in chosen], files=(), total=ALL)
        scores = array("d", (float(rng.random() < (0.65 if easy[i] else 0.2)) for i in chosen))
        value = 100.0 * math.fsum(scores) / ASKED
        found, _ = pairing.on_these_prompts(task, dataset, registered)
        pairs, _ = pairing.with_reference(task, dataset, found, [scores])
        result = make_result(ASKED, value, task="gsm8k", metric=task.metric)
        verdict = subset_reference_judge(result, found, hypothesis, pairs)
        assert verdict.paired is not None
        if verdict.outcome is VerdictOutcome.FAIL:
            failed += 1
            assert verdict.paired.difference < -verdict.paired.margin
            assert verdict.paired.p <= 0.05
    assert failed > 20
