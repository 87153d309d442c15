"""The wrong answer that a summary shows, and the breakdown of the reference next to the run's."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.results import examples
from serve_eval.evaluation.results.examples import break_down_reference, order_ids, pick_example
from serve_eval.evaluation.results.sample_table import OUTCOME_CODES, SampleTable
from serve_eval.schema import (
    MEAN,
    AccuracySpec,
    Dataset,
    Metric,
    Outcome,
    Plan,
    Reference,
    Spec,
    WrongExample,
)
from serve_eval.storage.records.scores import (
    ScoreRecord,
    ScoreWriter,
    encode,
    read_scores,
    write_scores,
)
from tests.evaluation.results.small_task import SAMPLES, by_kind, small_task

TASK = small_task(Metric(), MEAN, breakdown=by_kind)


def _asked(tmp_path: Path, outcomes: list[Outcome]) -> SampleTable:
    """Return a table with these outcomes, and write their scores as a run does."""
    table = SampleTable(TASK, SAMPLES[: len(outcomes)])
    (tmp_path / "scores").mkdir()
    with write_scores(tmp_path, TASK.name) as scores:
        for i, outcome in enumerate(outcomes):
            table.outcomes[i] = OUTCOME_CODES[outcome]
            _write(scores, i, outcome)
    return table


def _write(scores: ScoreWriter, i: int, outcome: Outcome) -> None:
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
def test_the_example_is_an_answer_that_turned_wrong(
    tmp_path: Path, outcomes: list[Outcome], reference: list[float], shown: int | None
) -> None:
    found = pick_example(tmp_path, _asked(tmp_path, outcomes), reference)
    if shown is None:
        assert found is None
        return
    answer = None if outcomes[shown] is UNPARSED else f"answer {shown}"
    assert found == WrongExample(id=str(shown), answer=answer, target=f"target {shown}")


def test_the_reference_is_broken_down_by_the_mean_of_its_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_numbers_in_ids_are_ordered_by_value() -> None:
    names = ["b-2", "b-10", "b-9", "a", "10", "9"]
    assert sorted(names, key=order_ids) == ["9", "10", "a", "b-2", "b-9", "b-10"]


@pytest.mark.usefixtures("simulated_here")
def test_a_run_shows_an_example_although_its_scores_are_not_all_on_disk(tmp_path: Path) -> None:
    plan = Plan(
        model="simulated",
        launcher=Spec(name="simulated", options={"accuracy": 0.0}),
        tasks=(Spec(name="word_problems", options={"num_samples": 5}),),
        no_reference=True,
    )
    [task] = asyncio.run(evaluate(plan, tmp_path / "run")).tasks
    lines = read_scores(tmp_path / "run", "word_problems")
    assert task.example is not None
    assert task.example.target == lines[task.example.id].target
    assert task.example.answer == lines[task.example.id].answer


def test_of_a_sample_that_was_asked_again_the_last_answer_is_shown(tmp_path: Path) -> None:
    table = _asked(tmp_path, [WRONG])
    with (tmp_path / "scores/small.jsonl").open("ab") as file:
        file.write(
            encode(ScoreRecord(id="0", outcome=WRONG, value=0.0, answer="later", target="target 0"))
            + b"\n"
        )
    assert pick_example(tmp_path, table, ()) == WrongExample(
        id="0", answer="later", target="target 0"
    )
