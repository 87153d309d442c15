"""Test prompts that are asked several times over HTTP.

Scores are averaged, a run is resumable, and the report shows the agreement of the endpoint with
itself.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.errors import DatasetError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.results.sample_table import Repeated
from serve_eval.schema import AccuracySpec, Plan, Report, Sample, Spec
from serve_eval.storage import run_folder
from serve_eval.verdicts import references
from serve_eval.workflows.references.register import register

pytestmark = pytest.mark.usefixtures("simulated_here")

N = 200


@pytest.fixture
def plan(data_root: Path) -> Plan:
    return Plan(
        model="my-org/my-model",
        launcher=Spec(
            name="simulated", options={"accuracy": 0.7, "flip_rate": 0.2, "varied": True}
        ),
        tasks=(Spec(name="gsm8k", options={"num_samples": N}),),
        dataset_roots=(str(data_root),),
        no_reference=True,
        repeats=3,
    )


def _run(plan: Plan, folder: Path) -> Report:
    return asyncio.run(evaluate(plan, folder))


def test_repeats_are_averaged_and_tell_how_stable_the_endpoint_is(
    plan: Plan, tmp_path: Path
) -> None:
    result = _run(plan, tmp_path / "out").tasks[0].result
    assert (result.planned, result.scored, result.failed) == (3 * N, 3 * N, 0)
    scores: dict[str, list[float]] = {}
    for line in (tmp_path / "out/scores/gsm8k.jsonl").read_text().splitlines():
        told = json.loads(line)
        scores.setdefault(told["id"].partition("#")[0], []).append(told["value"])
    assert Counter(map(len, scores.values())) == {3: N}
    values = list(scores.values())
    assert result.value == pytest.approx(100 * sum(map(sum, values)) / (3 * N))
    told = result.stability
    assert told is not None
    assert (told.repeats, told.prompts) == (3, N)
    mixed = sum(0 < sum(v) < 3 for v in values) / N
    assert told.mixed == pytest.approx(mixed)
    assert 0.1 < mixed < 0.5
    pairs = sum((a != b) + (a != c) + (b != c) for a, b, c in values) / (3 * N)
    assert told.flip_rate == pytest.approx(pairs)
    assert told.pass_at["1"] == pytest.approx(result.value)
    assert told.pass_at["3"] == pytest.approx(100 * sum(max(v) for v in values) / N)
    assert told.majority == pytest.approx(100 * sum(sum(v) >= 2 for v in values) / N)


def test_a_finished_run_takes_more_repeats_and_keeps_what_it_had(
    plan: Plan, tmp_path: Path
) -> None:
    once = _run(replace(plan, repeats=1), tmp_path / "out").tasks[0].result
    assert (once.planned, once.stability) == (N, None)
    first = (tmp_path / "out/samples/gsm8k.jsonl").read_bytes()
    twice = _run(replace(plan, repeats=2), tmp_path / "out").tasks[0].result
    assert twice.planned == twice.scored == 2 * N
    assert (tmp_path / "out/samples/gsm8k.jsonl").read_bytes().startswith(first)
    lines = (tmp_path / "out/samples/gsm8k.jsonl").read_bytes().splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == len(lines) == 2 * N
    kept = judge_again(run_folder.read_plan(tmp_path / "out"), tmp_path / "out")
    assert kept.tasks[0].result == twice


def test_each_repeat_is_a_run_of_a_reference_and_of_a_comparison(
    plan: Plan, tmp_path: Path
) -> None:
    _run(plan, tmp_path / "reference")
    (registered,) = register([tmp_path / "reference"], tmp_path / "refs")
    assert registered.runs == 3
    assert [line for line in registered.warnings if "differ as a whole" not in line] == [
        "200 of 1319 samples: detects only drops of 12.4 points or more",
        "the runs were simulated: this reference says nothing about any model",
    ]  # one in twenty orders makes the runs seem to differ
    found = references.find("gsm8k", "my-org/my-model", AccuracySpec(), [tmp_path / "refs"])
    assert found is not None
    assert found.runs is not None
    assert (found.runs.n, len(found.runs.values)) == (N, 3)
    options = {**plan.launcher.options, "run": 1}
    judged = replace(
        plan,
        launcher=Spec(name="simulated", options=options),
        no_reference=False,
        references_dir=str(tmp_path / "refs"),
        repeats=2,
    )
    verdict = _run(judged, tmp_path / "out").tasks[0].verdict
    assert verdict.paired is not None
    assert (verdict.paired.reference_runs, verdict.paired.candidate_runs, verdict.paired.pairs) == (
        3,
        2,
        N,
    )
    assert verdict.num_samples == N
    early = (
        _run(replace(judged, early_stop=0.01, rule_named=True), tmp_path / "early").tasks[0].verdict
    )
    assert early.early is not None
    assert early.early.planned == 2 * N


def test_ids_that_look_like_repeats_are_refused() -> None:
    samples = [Sample(id="a#2", prompt="p", target="t")]
    assert [sample.id for sample in Repeated(samples, 1)] == ["a#2"]
    with pytest.raises(DatasetError, match="'a#2' looks like that of a repeat"):
        Repeated(samples, 2)


def test_the_repeats_are_a_sequence() -> None:
    repeated = Repeated([Sample(id=str(i), prompt="p", target="t") for i in range(2)], 2)
    assert [sample.id for sample in repeated] == ["0", "1", "0#2", "1#2"]
    assert [sample.id for sample in repeated[1:3]] == ["1", "0#2"]
    assert repeated[-1].id == "1#2"
    with pytest.raises(IndexError):
        repeated[4]
