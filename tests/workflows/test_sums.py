"""Test every command on a value that depends on sums: word error rates of made-up utterances."""

import asyncio
import math
from dataclasses import replace

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evidence.answer_pairs import read_task
from serve_eval.evidence.score_pairs import score_pairs
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Plan, Shard, Spec, VerdictOutcome
from serve_eval.storage.report_file import read_report
from serve_eval.storage.scores import read_scores
from serve_eval.verdicts import references
from serve_eval.workflows.compare.verdict import compare_folders
from serve_eval.workflows.merge import merge, plan_of_whole, read_shards
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore
from tests.tasks.made_data import write_voxpopuli

pytest.importorskip("jiwer", reason="needs the optional extra media")
pytestmark = pytest.mark.usefixtures("simulated_here")

ALL, MODEL = 40, "my-org/my-model"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_voxpopuli(root / "voxpopuli", ALL)
    return Plan(
        model=MODEL,
        launcher=Spec(name="simulated", options={"accuracy": 0.9}),
        tasks=(Spec(name="voxpopuli", options={"num_samples": ALL}),),
        dataset_roots=(str(root),),
        no_reference=True,
    )


@pytest.fixture(scope="module")
def runs(plan, tmp_path_factory):
    """Return a folder with the runs a and b, of which b makes more errors."""
    folder = tmp_path_factory.mktemp("runs")
    _run(plan, folder / "a", 0.9)
    _run(plan, folder / "b", 0.3)
    return folder


def _run(plan, folder, accuracy):
    options = {**plan.launcher.options, "accuracy": accuracy}
    return asyncio.run(
        evaluate(
            replace(plan, launcher=Spec(name="simulated", options=options)), folder, environ={}
        )
    )


def _rate(folder):
    """Return the errors per 100 words, from the file of scores."""
    parts = [score.parts for score in read_scores(folder, "voxpopuli").values()]
    return 100.0 * sum(one["edits"] for one in parts) / sum(one["words"] for one in parts)


def test_the_value_is_that_of_all_words_and_its_interval_is_over_speakers(runs):
    (task,) = read_report(runs / "a").tasks
    assert task.result.value == pytest.approx(_rate(runs / "a"))
    scores = list(read_scores(runs / "a", "voxpopuli").values())
    named = [score.group for score in scores if isinstance(score.group, str)]
    assert len(set(named)) == 12
    assert len(scores) - len(named) == 3  # their speaker is not known
    sums = {}
    for score in scores:
        one = sums.setdefault(str(score.group or score.id), [0.0, 0.0])
        one[0] += score.parts["edits"]
        one[1] += score.parts["words"]
    edits, words = (sum(one[i] for one in sums.values()) for i in (0, 1))
    without = [(edits - e) / (words - w) for e, w in sums.values()]
    g, mean = len(without), sum(without) / len(without)
    error = math.sqrt((g - 1) / g * sum((one - mean) ** 2 for one in without))
    from scipy.special import stdtrit

    half = float(stdtrit(g - 1, 0.975)) * error
    low, high = 100.0 * max(0.0, edits / words - half), 100.0 * (edits / words + half)
    assert task.result.interval == pytest.approx((low, high))


def test_compare_pairs_the_errors_of_each_utterance_by_speaker(runs):
    comparison = compare_folders(runs / "a", runs / "b", Spec(name="paired"))
    verdict = comparison.tasks[0].verdict
    assert verdict.paired.difference == pytest.approx(_rate(runs / "a") - _rate(runs / "b"))
    assert verdict.outcome is VerdictOutcome.FAIL
    sides = [read_task(runs / side, read_report(runs / side), "voxpopuli") for side in "ab"]
    pairs = score_pairs(*sides, build_task(sides[0].task.spec, "t").aggregation.sums)
    assert (pairs.n, pairs.units) == (ALL, 15)  # twelve speakers and three utterances


def test_a_registered_reference_keeps_the_sums_of_each_utterance(plan, runs, tmp_path):
    (registered,) = register([runs / "a"], tmp_path / "refs")
    assert registered.value == pytest.approx(_rate(runs / "a"))
    text = (tmp_path / "refs/voxpopuli.yaml").read_text()
    assert f"wer: {registered.value}" in text
    judged = replace(
        plan,
        no_reference=False,
        references_dir=str(tmp_path / "refs"),
        verdict=Spec(name="paired"),
        early_stop=0.01,
    )
    (task,) = _run(judged, tmp_path / "out", 0.3).tasks
    assert task.verdict.paired.difference == pytest.approx(_rate(runs / "a") - _rate(runs / "b"))
    assert task.verdict.outcome is VerdictOutcome.FAIL
    assert any(
        "no early stop: the value is the word error rate" in w for w in task.verdict.warnings
    )
    some = replace(judged, early_stop=None, limit=20)
    (part,) = _run(some, tmp_path / "part", 0.9).tasks
    assert part.verdict.reference == pytest.approx(_rate(tmp_path / "part"))
    assert part.verdict.paired.difference == pytest.approx(0.0, abs=1e-12)
    found = references.find("voxpopuli", MODEL, plan.accuracy_spec, [tmp_path / "refs"])
    assert found.runs is not None


def test_shards_add_up(plan, runs, tmp_path):
    for number in (1, 2):
        _run(replace(plan, shard=Shard(number=number, count=2)), tmp_path / str(number), 0.9)
    shards = read_shards([tmp_path / "1", tmp_path / "2"])
    report = merge(shards, plan_of_whole(shards), tmp_path / "whole")
    assert report.tasks[0].result.value == pytest.approx(_rate(runs / "a"))


def test_rescore_gives_the_same_value(runs):
    (task,) = rescore(runs / "b")
    assert task.before == task.after == pytest.approx(_rate(runs / "b"))
