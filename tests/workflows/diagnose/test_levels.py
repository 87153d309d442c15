"""The rules' constants add up to the levels that the documentation promises."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from serve_eval.schema import Outcome
from serve_eval.storage.records.scores import ScoreRecord
from serve_eval.workflows.diagnose.evidence import Evidence
from serve_eval.workflows.diagnose.finding import ALPHA
from serve_eval.workflows.diagnose.run_rules import (
    OF_A_RUN,
    OF_A_TASK,
    TESTS,
    findings,
    sum_comparison_levels,
    sum_levels,
)
from tests.workflows.diagnose.test_pure import healthy

TEXT = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text()


BUDGET = 0.01


def test_all_rules_together_keep_to_one_budget() -> None:
    said = " ".join(TEXT.split())
    assert sum_levels() == pytest.approx(BUDGET)
    assert sum_comparison_levels() == pytest.approx(BUDGET)
    assert f"with a probability of .{round(1000 * BUDGET):03d} at most" in said
    equal = [rule for rule, level in {**OF_A_TASK, **OF_A_RUN}.items() if level == ALPHA]
    listed = re.search(r"at most: (.*?) have \.001 each", said)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == set(equal)
    repeated = sum(OF_A_TASK[rule] for rule in ("worker", "slow_worker", "drift"))
    assert f"and the repeated alarms .00{round(1000 * repeated)}" in said
    for rule in ("slice", "unlike"):
        assert f"`{rule}` .00{round(10000 * OF_A_RUN[rule]):02d}" in said


def test_the_tasks_of_a_run_and_the_sides_of_a_comparison_share_the_levels() -> None:
    """Each further answer of as many in one direction halves the one-sided p."""
    for share, apart in ((1.0, 11), (0.5, 12), (0.25, 13)):
        for count, said in ((apart - 1, False), (apart, True)):
            run = healthy_with_parts(count)
            [task] = run.tasks
            shared = replace(run, share=share, tasks=(replace(task, share=share),))
            assert any(one.rule == "extractors" for one in findings(shared)) is said


def test_every_rule_of_the_table_that_tests_has_its_level_in_the_sum() -> None:
    table = TEXT.split("## The rules")[1].split("\n\n")[1]
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in table.splitlines()[2:]
    ]
    assert {rule for rule, _, speaks, _ in rows if "test" in speaks} == TESTS


@pytest.mark.parametrize(("apart", "said"), [(10, False), (11, True)])
def test_extractors_are_tested_in_both_directions_at_half_the_level(apart: int, said: bool) -> None:
    """Ten of ten in one direction have a one-sided p of .00098; eleven have .00049."""
    run = healthy_with_parts(apart)
    assert any(one.rule == "extractors" for one in findings(run)) is said


def healthy_with_parts(apart: int) -> Evidence:
    """Return a run of 60 answers; `apart` of them are right by the flexible extractor only.

    Both extractors find the others right.
    """
    run = healthy(random.Random(3), 60)
    [task] = run.tasks
    asked = tuple(
        replace(
            one,
            bad=i < apart,
            line=ScoreRecord(
                id=one.id,
                outcome=Outcome.WRONG if i < apart else Outcome.CORRECT,
                value=float(i >= apart),
                target="17",
                parts={"strict-match": float(i >= apart), "flexible-extract": 1.0},
            ),
            response=(
                None
                if one.response is None
                else msgspec.structs.replace(one.response, finish_reason="stop")
            ),
        )
        for i, one in enumerate(task.asked)
    )
    return replace(run, tasks=(replace(task, asked=asked),))
