import hashlib
from pathlib import Path

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.evaluation.results.scoring import ScoringProcesses, recipe_for
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import DataRoots, Outcome, Response, Spec
from serve_eval.scorers.math import TIMED_OUT
from serve_eval.tasks.math_500 import SOURCE, task
from tests.tasks.made_data import write_jsonl

pytest.importorskip("math_verify", reason="needs the optional extra math")

SHARED = Path(__file__).resolve().parents[2].parent / "shared/data/math_500/test.jsonl"


def _row(**more):
    row = {"problem": "What is $1+\\frac{1}{2}$?", "solution": "$\\boxed{\\frac{3}{2}}$"}
    row |= {"answer": "\\frac{3}{2}", "subject": "Algebra", "level": 2}
    return {**row, "unique_id": "test/algebra/1.json", **more}


def _load(folder, *rows):
    write_jsonl(folder / "test.jsonl", rows)
    return list(task().load(DataRoots(roots=(folder,)), len(rows)).samples)


def test_the_problem_is_asked_with_the_line_for_a_box(tmp_path):
    [sample] = _load(tmp_path, _row())
    [turn] = sample.prompt
    assert turn.content == (
        "What is $1+\\frac{1}{2}$?\n"
        "Please reason step by step, and put your final answer within \\boxed{}."
    )
    assert (sample.id, sample.target) == ("test-algebra-1", "\\frac{3}{2}")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("So it is \\boxed{1.5}.", Outcome.CORRECT),
        ("So it is \\boxed{\\frac{6}{4}}.", Outcome.CORRECT),
        ("So it is \\boxed{\\frac{2}{3}}.", Outcome.WRONG),
        ("I cannot say.", Outcome.UNPARSED),
    ],
)
def test_equal_formulas_are_right(tmp_path, text, outcome):
    [sample] = _load(tmp_path, _row())
    response = Response(text=text, finish_reason="stop")
    assert task().score(sample, response).outcome is outcome


def test_a_hostile_answer_costs_a_run_seconds_and_one_answer_its_point(data_root):
    """It is scored in another process, where the next answer finds the library loaded."""
    roots, spec = DataRoots(roots=(data_root,)), Spec(name="math_500")
    sample = next(s for s in task().load(roots, 500).samples if s.target.startswith("x^2"))
    recipe = recipe_for(spec, roots=roots, wanted=500)
    with ScoringProcesses({"math_500": recipe}, limit_s=60.0) as scoring:
        apart = scoring.of("math_500")
        assert apart is not None
        grades = [
            apart(sample, Response(text=text, finish_reason="stop")).result()
            for text in ("\\boxed{9^{9^{9^{9}}}}", f"\\boxed{{{sample.target}}}")
        ]
    assert not any(isinstance(one, Unfinished) for one in grades)
    assert [(score.value, score.mode) for score, _ in grades] == [(0.0, TIMED_OUT), (1.0, None)]


def test_the_breakdown_is_by_level_and_subject(data_root):
    dataset = task().load(DataRoots(roots=(data_root,)), 500)
    assert (dataset.total, dataset.deviation) == (500, None)
    tables = task().breakdown((sample, 1.0) for sample in dataset.samples)
    assert sorted(tables["level"]) == ["1", "2", "3", "4", "5"]
    assert sorted(tables["subject"]) == ["Algebra", "Precalculus"]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (_row(level=6), "row 1: level must be a number from 1 to 5, not 6"),
        (_row(answer=None), "row 1: answer is empty, not a text"),
    ],
)
def test_rows_that_cannot_be_asked_are_named(tmp_path, row, what):
    with pytest.raises(DatasetError, match=what):
        _load(tmp_path, row)


def test_too_few_rows_say_where_to_get_the_others(tmp_path):
    _load(tmp_path, _row())
    with pytest.raises(DatasetError, match="has 1 rows; 2 are needed") as raised:
        task().load(DataRoots(roots=(tmp_path,)), 2)
    assert "serve-eval data fetch math_500 -o DIR" in raised.value.hint
    with pytest.raises(PlanError, match="num_samples"):
        task(num_samples=0)


@pytest.mark.skipif(not SHARED.is_file(), reason="needs MATH-500 in ../shared/data")
def test_the_published_file_has_the_published_checksum_and_its_gold_answers_are_right():
    found = hashlib.sha256(SHARED.read_bytes()).hexdigest()
    assert found == SOURCE.sha256["test.jsonl"]
    made = task()
    samples = made.load(DataRoots(roots=(SHARED.parent,)), 500).samples
    gold = [Response(text=made.answers(one)[0], finish_reason="stop") for one in samples]
    values = [made.score(*pair).value for pair in zip(samples, gold, strict=True)]
    assert values == [1.0] * 500
