"""Test the early stop of pairs whose samples share groups: it looks at whole groups only."""

import math
import random
from array import array
from dataclasses import replace

import pytest

from serve_eval.evaluation.early_stop import watch
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.schema import (
    AccuracySpec,
    Dataset,
    Failure,
    FailureKind,
    Hypothesis,
    Metric,
    Outcome,
    Reference,
    ReferenceRuns,
    Response,
    Sample,
    SamplingParams,
    Score,
    Spec,
    Task,
)
from serve_eval.stats.classic import Decision
from serve_eval.stats.multiplicity import acceptance_region
from serve_eval.verdicts import pairing, reference_samples
from serve_eval.verdicts.reference_samples import SampleScores
from tests.made_results import make_prepared

GROUPS, SIZE, MARGIN = 60, 10, 10.0
"""The margin in points."""
LOST = Failure(kind=FailureKind.TIMEOUT, message="late")


def _score(sample, response):
    return Score(value=float(response.text), outcome=Outcome.PARTIAL)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a task of passages with a reference that had every answer right."""
    folder = tmp_path_factory.mktemp("groups")
    task = Task(
        name="numbers",
        version=1,
        reference_file="numbers",
        metric=Metric(),
        hypothesis=Hypothesis(),
        sampling=SamplingParams(max_tokens=2),
        protocol={},
        load=lambda roots, n: Dataset(samples=[], files=(), total=0),
        score=_score,
        answers=lambda sample: ("1", "0"),
    )
    n = GROUPS * SIZE
    samples = [
        Sample(id=str(i), prompt=f"p{i}", target="", group=f"g{i % GROUPS}") for i in range(n)
    ]
    stored = SampleScores(
        task=task.name,
        lo=0.0,
        hi=1.0,
        keys=b"".join(map(sample_key, samples)),
        runs=(array("d", [1.0] * n),),
    )
    digest = reference_samples.write(folder / "scores", stored)
    reference = Reference(
        task=task.name,
        model="m",
        spec=AccuracySpec(),
        value=100.0,
        file=str(folder / "numbers.yaml"),
        runs=ReferenceRuns(values=(100.0,), n=n, sigma=0.0, samples="scores", sha256=digest),
    )
    return make_prepared(
        task,
        Dataset(samples=samples, files=(), total=n),
        hypothesis=Hypothesis(num_samples=n, alpha=0.2),
        reference=reference,
        rule=Spec(name="noninferiority", options={"margin": MARGIN, "max_missing": 0.5}),
    )


def _with_runs(prepared, folder, runs):
    """Return the task with a reference of these runs."""
    reference = prepared.reference
    assert reference is not None
    stored = SampleScores(
        task=prepared.task.name,
        lo=0.0,
        hi=1.0,
        keys=b"".join(map(sample_key, prepared.dataset.samples)),
        runs=tuple(array("d", run) for run in runs),
    )
    values = tuple(100 * sum(run) / len(run) for run in runs)
    digest = reference_samples.write(folder / "scores", stored)
    kept = ReferenceRuns(values=values, n=GROUPS * SIZE, sigma=0.0, samples="scores", sha256=digest)
    file = str(folder / "numbers.yaml")
    return replace(prepared, reference=replace(reference, runs=kept, file=file))


def test_runs_that_misread_other_passages_do_not_differ_as_a_whole(prepared, tmp_path):
    """By single prompts they do, and there would be no early stop."""
    rng = random.Random(4)
    misread = [{g for g in range(GROUPS) if rng.random() < 0.15} for _ in range(3)]
    runs = [[float(i % GROUPS not in one) for i in range(GROUPS * SIZE)] for one in misread]
    task = _with_runs(prepared, tmp_path, runs)
    assert watch(task, ScoreAccumulator(task.task, task.dataset.samples), eps=0.01, seed=0)[0]
    alone = _ungrouped(task)
    assert alone.reference is not None
    prefix, note = watch(
        alone, ScoreAccumulator(task.task, alone.dataset.samples), eps=0.01, seed=0
    )
    assert prefix is None
    assert "the reference's runs differ as a whole" in note
    pairs, _ = pairing.with_reference(
        task.task, task.dataset, task.reference, [array("d", runs[0])]
    )
    assert pairs.reference_effect is None


def _watch(prepared, seed=0):
    accumulator = ScoreAccumulator(prepared.task, prepared.dataset.samples)
    prefix, note = watch(prepared, accumulator, eps=0.01, seed=seed)
    assert prefix is not None, note
    return prefix, accumulator


def _answer(value):
    return Response(text=str(value), finish_reason="stop")


def _ungrouped(prepared):
    samples = [replace(sample, group="") for sample in prepared.dataset.samples]
    return replace(prepared, dataset=replace(prepared.dataset, samples=samples))


def _count_decided(prepared, runs):
    """Return how many runs end early that lose a tenth of the passages, exactly the margin."""
    rng, decided = random.Random(8), 0
    for seed in range(runs):
        prefix, accumulator = _watch(prepared, seed)
        lost = {g for g in range(GROUPS) if rng.random() < MARGIN / 100}
        for i in range(GROUPS * SIZE):
            accumulator.add(i, _answer(float(i % GROUPS not in lost)))
        decided += prefix.look()
    return decided


def test_at_a_loss_of_the_margin_in_whole_passages_the_level_holds(prepared):
    """Looks at single prompts, which the same answers without groups get, break it."""
    runs = 40
    assert _count_decided(prepared, runs) <= acceptance_region(runs, 2 * 0.1)[1]
    assert _count_decided(_ungrouped(prepared), runs) > 0.5 * runs


def test_a_group_counts_once_all_its_samples_are_in(prepared):
    prefix, accumulator = _watch(prepared)
    for place, i in enumerate(prefix.order[: 3 * SIZE], 1):
        accumulator.add(i, _answer(1.0))
        prefix.look()
        assert prefix.looked_at == place // SIZE * SIZE
        group = {sample.group for sample in _samples(prepared, prefix, place)}
        assert len(group) == math.ceil(place / SIZE)


def _samples(prepared, prefix, count):
    return [prepared.dataset.samples[i] for i in prefix.order[:count]]


def test_a_gap_holds_up_all_groups_behind_it(prepared):
    prefix, accumulator = _watch(prepared)
    for i in prefix.order[1:]:
        accumulator.add(i, _answer(1.0))
        assert not prefix.look()
    assert prefix.looked_at == 0
    accumulator.add(prefix.order[0], _answer(1.0))
    assert prefix.look()
    told = prefix.result()
    assert (told.decision, told.groups, told.stopped) == ("PASS", GROUPS, False)
    prefix.restart()
    assert prefix.look()
    assert prefix.result() == told


@pytest.mark.parametrize("lost", [1, SIZE])
def test_missing_answers_count_against_both_bets(prepared, lost):
    logs = []
    for missing in (0, lost):
        prefix, accumulator = _watch(prepared)
        for place, i in enumerate(prefix.order[: 5 * SIZE]):
            accumulator.add(i, LOST if place < missing else _answer(1.0))
        prefix.look()
        told = prefix.result()
        assert (told.looked_at, told.missing) == (5 * SIZE, missing)
        logs.append((told.log_wealth_pass, told.log_wealth_answered))
    for before, after in zip(*logs, strict=True):
        assert before > after


def test_a_clear_loss_stops_and_so_does_none(prepared):
    for share, decision in ((0.0, Decision.PASS), (0.6, Decision.FAIL)):
        prefix, accumulator = _watch(prepared)
        rng = random.Random(2)
        for i in prefix.order:
            accumulator.add(i, _answer(float(rng.random() >= share)))
            if prefix.look():
                break
        assert prefix.decision is decision
        assert prefix.looked_at < GROUPS * SIZE
        assert prefix.result().stopped


def test_a_group_keeps_all_its_repeats(prepared: PreparedTask):
    """A passage that is misread may be misread each time, so its repeats are no new draws."""
    accumulator = ScoreAccumulator(prepared.task, prepared.dataset.samples, repeats=3)
    prefix, note = watch(prepared, accumulator, eps=0.01, seed=0)
    assert prefix is not None, note
    samples = prepared.dataset.samples
    units = [prefix.order[i : i + 3 * SIZE] for i in range(0, len(prefix.order), 3 * SIZE)]
    assert [len({samples[i % len(samples)].group for i in unit}) for unit in units] == [1] * GROUPS
    for i in prefix.order[: 3 * SIZE - 1]:
        accumulator.add(i, _answer(1.0))
    assert (prefix.look(), prefix.looked_at) == (False, 0)
    accumulator.add(prefix.order[3 * SIZE - 1], _answer(1.0))
    assert (prefix.look(), prefix.looked_at) == (False, 3 * SIZE)
    assert (prefix.result().groups, prefix.result().rounds) == (GROUPS, None)


def test_slow_answers_to_repeats_hold_up_the_round_that_they_belong_to(prepared: PreparedTask):
    """All right answers come at once, and the wrong ones, a third, after everything else.

    Without the gaps that they leave, every value would be that of the reference.
    """
    alone, rng = _ungrouped(prepared), random.Random(2)
    n = len(alone.dataset.samples)
    accumulator = ScoreAccumulator(alone.task, alone.dataset.samples, repeats=4)
    prefix, note = watch(alone, accumulator, eps=0.01, seed=0)
    assert prefix is not None, note
    slow = {i for i in range(4 * n) if rng.random() < 1 / 3}
    for i in prefix.order:
        if i not in slow:
            accumulator.add(i, _answer(1.0))
            assert not prefix.look()
    assert prefix.looked_at < 20
    for i in (i for i in prefix.order if i in slow):
        accumulator.add(i, _answer(0.0))
        prefix.look()
    told = prefix.result()
    assert (told.decision, told.rounds, told.groups) == ("FAIL", 4, None)
