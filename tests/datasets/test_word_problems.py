"""Test that answers of problems are right and no test problem was in the training data."""

from __future__ import annotations

import itertools
import re

import pytest

from serve_eval.datasets.generated import MOST, Problem, Split, problems, split_of


def _some(split: Split, count: int = 300, seed: int = 5) -> list[Problem]:
    return list(itertools.islice(problems(split, seed), count))


def _operands(problem: Problem) -> tuple[int, ...]:
    """Return the start and the changes, parsed from the solution."""
    lines = problem.solution.splitlines()[:-1]
    start = int(re.findall(r"^\d+", lines[0])[0])
    return (start, *(int(re.findall(r"[+-]\d+", line)[0]) for line in lines))


def test_a_solution_is_a_chain_of_true_equations_that_ends_in_the_answer() -> None:
    for problem in _some("train"):
        *lines, last = problem.solution.splitlines()
        assert 1 <= len(lines) <= 4
        total = None
        for line in lines:
            left, sign, right, result = re.fullmatch(r"(\d+)([+-])(\d+)=(\d+)", line).groups()  # type: ignore[union-attr]
            assert total is None or int(left) == total
            total = int(left) + int(sign + right)
            assert int(result) == total
            assert 0 < total < MOST
        assert last == f"#### {problem.answer}"
        assert problem.answer == total


def test_the_question_names_every_number_in_order() -> None:
    for problem in _some("test"):
        told = [int(number) for number in re.findall(r"\d+", problem.question)]
        assert told == [abs(operand) for operand in _operands(problem)]
        assert problem.question.endswith(" have now?")


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_problem_is_in_the_split_of_its_operands(split: Split) -> None:
    assert {split_of(_operands(problem)) for problem in _some(split)} == {split}


def test_no_operands_are_in_both_splits() -> None:
    seen = {_operands(problem) for problem in _some("train", 5000)}
    assert not seen & {_operands(problem) for problem in _some("test", 1000)}


def test_a_seed_gives_the_same_problems_and_another_seed_others() -> None:
    assert _some("test", 20) == _some("test", 20)
    assert _some("test", 20) != _some("test", 20, seed=6)
