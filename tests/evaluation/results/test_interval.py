"""Test the interval of a value, its breakdown, and the wrong answer shown with it."""

import asyncio
import math
import random
import statistics

import pytest
from scipy.stats import t

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.results import examples
from serve_eval.evaluation.results.examples import break_down_reference, order_ids, pick_example
from serve_eval.evaluation.results.sample_table import OUTCOME_CODES, SampleTable
from serve_eval.evaluation.results.task_result import interval
from serve_eval.schema import (
    MEAN,
    AccuracySpec,
    Aggregation,
    Dataset,
    Hypothesis,
    Metric,
    Outcome,
    Plan,
    Reference,
    Sample,
    SamplingParams,
    Score,
    Spec,
    Task,
    WrongExample,
)
from serve_eval.stats.intervals import wilson
from serve_eval.storage.scores import ScoreRecord, encode, read_scores, write_scores

SAMPLES = [
    Sample(
        id=str(i), prompt=f"{i}?", target="1", metadata={"kind": "even" if i % 2 == 0 else "odd"}
    )
    for i in range(100)
]


def small_task(metric, aggregation, **more):
    """Return a task that is never asked."""
    return Task(
        name="small",
        version=1,
        reference_file="small",
        metric=metric,
        hypothesis=Hypothesis(num_samples=3),
        sampling=SamplingParams(max_tokens=5),
        protocol={},
        load=_load,
        score=_score,
        answers=lambda sample: ("1", "0"),
        aggregation=aggregation,
        **more,
    )


def by_kind(scored):
    """Return the mean by the kind of the sample."""
    kinds = {}
    for sample, value in scored:
        kinds.setdefault(sample.metadata["kind"], []).append(value)
    return {
        "kind": {
            kind: {"value": 100.0 * sum(values) / len(values), "scored": len(values)}
            for kind, values in kinds.items()
        }
    }


def _load(roots, wanted):
    raise NotImplementedError


def _score(sample, response):
    return Score(value=float(response.text), outcome=Outcome.PARTIAL)


SHARE = Metric()
UNBOUNDED = Metric(name="loss", lo=None, hi=None, scale=1.0, higher_is_better=False)
SQUARED = Aggregation(
    name="square", of=lambda scored: statistics.fmean(s.value for _, s in scored) ** 2
)
AVERAGE = Aggregation(
    name="average", of=lambda scored: statistics.fmean(s.value for _, s in scored)
)


def _table(
    values,
    *,
    metric=SHARE,
    aggregation=MEAN,
    repeats=1,
):
    """Return a table with these scores; None has no score."""
    made = SampleTable(small_task(metric, aggregation), SAMPLES[: len(values) // repeats], repeats)
    for i, value in enumerate(values):
        if value is not None:
            made.values[i], made.outcomes[i] = value, OUTCOME_CODES[Outcome.PARTIAL]
            made.scored += 1
    return made


@pytest.mark.parametrize("right", [0, 1, 20, 40])
def test_a_share_has_wilsons_interval_also_at_its_ends(right):
    low, high = interval(_table([1.0] * right + [0.0] * (40 - right))) or (0.0, 0.0)
    assert (low / 100, high / 100) == pytest.approx(wilson(right, 40, 0.05))
    assert low < high


def test_missing_answers_widen_it_to_their_worst_and_their_best():
    low, high = interval(_table([1.0] * 30 + [None] * 10)) or (0.0, 0.0)
    assert low / 100 == pytest.approx(wilson(30, 40, 0.05)[0])
    assert high / 100 == pytest.approx(wilson(40, 40, 0.05)[1])


def test_repeats_of_a_prompt_are_no_further_prompts():
    once = interval(_table([1.0, 0.0] * 10))
    assert interval(_table([1.0, 0.0] * 30, repeats=3)) == pytest.approx(once)


def test_another_range_of_scores_is_scaled():
    signed = Metric(name="signed", lo=-1.0, hi=1.0, scale=1.0)
    low, high = interval(_table([-1.0] * 10 + [1.0] * 30, metric=signed)) or (0.0, 0.0)
    ends = wilson(30, 40, 0.05)
    assert (low, high) == pytest.approx((2 * ends[0] - 1, 2 * ends[1] - 1))


def test_an_unbounded_mean_has_students_interval_and_the_jackknife_agrees():
    values = [random.Random(1).gauss(3.0, 1.0) for _ in range(20)]
    half = t.ppf(0.975, 19) * statistics.stdev(values) / math.sqrt(20)
    ends = statistics.fmean(values) - half, statistics.fmean(values) + half
    assert interval(_table(values, metric=UNBOUNDED)) == pytest.approx(ends)
    # One prompt per group: the jackknife of a mean is the standard error of the mean.
    again = _table(values, metric=UNBOUNDED, aggregation=AVERAGE)
    assert interval(again) == pytest.approx(ends)


def test_the_jackknife_of_another_aggregation_covers_the_true_value():
    rng, hits = random.Random(2), 0
    for _ in range(200):
        values = [rng.gauss(3.0, 1.0) for _ in range(100)]
        low, high = interval(_table(values, metric=UNBOUNDED, aggregation=SQUARED)) or (0, 0)
        hits += low <= 9.0 <= high
    assert 178 <= hits <= 199  # 95 % of 200; outside by chance less than once in 100,000


@pytest.mark.parametrize(
    "table",
    [
        _table([None, None]),
        _table([1.0, None], metric=UNBOUNDED),
        _table([1.0, None], aggregation=SQUARED),
        _table([1.0], metric=UNBOUNDED),
        _table([1.0], aggregation=SQUARED),
    ],
)
def test_what_cannot_be_known_has_no_interval(table):
    assert interval(table) is None


TASK = small_task(Metric(), MEAN, breakdown=by_kind)


def _asked(tmp_path, outcomes):
    """Return a table with these outcomes, and write their scores as a run does."""
    table = SampleTable(TASK, SAMPLES[: len(outcomes)])
    (tmp_path / "scores").mkdir()
    with write_scores(tmp_path, TASK.name) as scores:
        for i, outcome in enumerate(outcomes):
            table.outcomes[i] = OUTCOME_CODES[outcome]
            _write(scores, i, outcome)
    return table


def _write(scores, i, outcome):
    answer = None if outcome is Outcome.UNPARSED else f"answer {i}"
    scores.write(
        ScoreRecord(id=str(i), outcome=outcome, value=0.0, answer=answer, target=f"target {i}")
    )


RIGHT, WRONG, UNPARSED = Outcome.CORRECT, Outcome.WRONG, Outcome.UNPARSED


@pytest.mark.parametrize(
    ("outcomes", "reference", "shown"),
    [
        ([RIGHT, UNPARSED, WRONG, WRONG], [1.0, 1.0, 0.5, 1.0], 3),
        ([RIGHT, UNPARSED, WRONG, WRONG], [1.0, 1.0, 0.0, math.nan], 2),
        ([RIGHT, UNPARSED, WRONG, WRONG], [], 2),
        ([RIGHT, UNPARSED, UNPARSED], [1.0, 0.0, 1.0], 2),
        ([RIGHT, RIGHT], [1.0, 1.0], None),
    ],
)
def test_the_example_is_an_answer_that_turned_wrong(tmp_path, outcomes, reference, shown):
    found = pick_example(tmp_path, _asked(tmp_path, outcomes), reference)
    if shown is None:
        assert found is None
        return
    answer = None if outcomes[shown] is UNPARSED else f"answer {shown}"
    assert found == WrongExample(id=str(shown), answer=answer, target=f"target {shown}")


def test_the_reference_is_broken_down_by_the_mean_of_its_runs(
    monkeypatch,
):
    dataset = Dataset(samples=SAMPLES[:4], files=(), total=4)
    reference = Reference(task="small", model="m", spec=AccuracySpec(), value=50.0)
    assert break_down_reference(TASK, dataset, None) == ({}, ())
    assert break_down_reference(TASK, dataset, reference) == ({}, ())
    runs = [[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, math.nan]]
    monkeypatch.setattr(examples, "read_stored_runs", lambda dataset, reference: (runs, 0.0, 1.0))
    table, means = break_down_reference(TASK, dataset, reference)
    assert table == {
        "kind": {"even": {"value": 75.0, "scored": 2}, "odd": {"value": 0.0, "scored": 1}}
    }
    assert list(means[:3]) == [0.5, 0.0, 1.0]
    assert math.isnan(means[3])


def test_numbers_in_ids_are_ordered_by_value():
    names = ["b-2", "b-10", "b-9", "a", "10", "9"]
    assert sorted(names, key=order_ids) == ["9", "10", "a", "b-2", "b-9", "b-10"]


@pytest.mark.usefixtures("simulated_here")
def test_a_run_shows_an_example_although_its_scores_are_not_all_on_disk(tmp_path):
    plan = Plan(
        model="simulated",
        launcher=Spec(name="simulated", options={"accuracy": 0.0}),
        tasks=(Spec(name="word_problems", options={"num_samples": 5}),),
        no_reference=True,
    )
    [task] = asyncio.run(evaluate(plan, tmp_path / "run")).tasks
    lines = read_scores(tmp_path / "run", "word_problems")
    assert task.example.target == lines[task.example.id].target
    assert task.example.answer == lines[task.example.id].answer


def test_of_a_sample_that_was_asked_again_the_last_answer_is_shown(tmp_path):
    table = _asked(tmp_path, [WRONG])
    with (tmp_path / "scores/small.jsonl").open("ab") as file:
        file.write(
            encode(ScoreRecord(id="0", outcome=WRONG, value=0.0, answer="later", target="target 0"))
            + b"\n"
        )
    assert pick_example(tmp_path, table, ()) == WrongExample(
        id="0", answer="later", target="target 0"
    )
