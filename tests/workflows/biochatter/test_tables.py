"""BioChatter's tables against figures computed by hand, and without its three published bugs."""

from __future__ import annotations

import pytest

from serve_eval.workflows.export.biochatter import (
    CaseScores,
    make_overview,
    split_subtasks,
    tabulate_task,
)


def _case(model: str, subtask: str, *scores: float, iterations: int | None = None) -> CaseScores:
    return CaseScores(
        model=model, subtask=subtask, scores=scores, iterations=iterations or len(scores)
    )


CASES = [
    _case("a", "extraction:assay:1", 1.0, 0.5, 0.0),
    _case("a", "extraction:tissue:1", 1.0, 1.0, 1.0),
    _case("b", "extraction:assay:1", 0.6, iterations=5),
    _case("b", "extraction:tissue:1", 1.0, iterations=5),
]


def test_a_row_sums_scores_and_the_spread_of_each_case() -> None:
    b, a = tabulate_task(CASES)
    assert (a.model, a.achieved, a.possible, a.iterations) == ("a", 4.5, 6, 3)
    assert a.sd == pytest.approx(0.5)
    assert a.accuracy == pytest.approx(0.75)
    assert (b.model, b.achieved, b.possible, b.sd, b.iterations) == ("b", 8.0, 10, 0.0, 5)


def test_an_older_row_counts_once_for_each_iteration_in_tables_of_subtasks_too() -> None:
    subtasks = split_subtasks(CASES)
    assert list(subtasks) == ["assay", "tissue"]
    by_model = {row.model: row.accuracy for row in tabulate_task(subtasks["assay"])}
    assert by_model == {"a": pytest.approx(0.5), "b": pytest.approx(0.6)}


def test_cases_of_one_subtask_have_no_table_of_subtasks() -> None:
    assert split_subtasks([_case("a", "one"), _case("a", "two:x"), _case("b", "three:x")]) == {}


def test_median_and_sd_of_a_model_are_those_of_its_tasks_alone() -> None:
    tables = {
        task: tabulate_task([_case("m", "c", value), *more])
        for task, value, more in (
            ("t1", 0.2, [_case("n", "c", 0.5)]),
            ("t2", 0.6, []),
            ("t3", 1.0, []),
            ("t4", 0.8, []),
        )
    }
    m, n = make_overview(tables)
    assert m.accuracies == (0.2, 0.6, 1.0, 0.8)
    assert m.mean == pytest.approx(0.65)
    assert m.median == pytest.approx(0.7)  # with the mean among the tasks it would be .65
    assert m.sd == pytest.approx(0.341565, abs=1e-6)
    assert n.accuracies == (0.5, None, None, None)
    assert (n.median, n.sd) == (0.5, None)
    assert n.list_cells() == ["n", "0.5", "", "", "", "0.5", "0.5", ""]
