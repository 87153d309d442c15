"""The rules' constants add up to the levels that the documentation promises."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from serve_eval.evaluation.storage.records.scores import ScoreRecord
from serve_eval.schema import Outcome
from serve_eval.workflows.diagnose.evidence import Evidence
from serve_eval.workflows.diagnose.finding import ALPHA
from serve_eval.workflows.diagnose.levels import (
    OF_A_COMPARISON,
    OF_A_RUN,
    OF_A_TASK,
    sum_levels,
    sum_own_levels,
)
from serve_eval.workflows.diagnose.story import findings
from tests.workflows.diagnose.test_pure import healthy

TEXT = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text()


def test_the_sum_of_the_levels_is_what_the_documentation_says() -> None:
    said = " ".join(TEXT.split())
    own = sum(level for level in (*OF_A_TASK.values(), *OF_A_RUN.values()) if level == ALPHA)
    assert f"together .{round(1000 * own):03d}" in said
    found = re.search(
        r"the tests accuse a healthy run of one task with a probability of \.(\d+) at most", said
    )
    assert found is not None
    assert float(f"0.{found[1]}") == pytest.approx(sum_levels())
    alone = re.search(
        r"own tests accuse a healthy run of one task with a probability of \.(\d+)", said
    )
    assert alone is not None
    assert float(f"0.{alone[1]}") == pytest.approx(sum_own_levels())
    assert f"`slice` adds .00{round(1000 * OF_A_RUN['slice'])}" in said
    more = re.search(r"each further task adds \.(\d+)", said)
    assert more is not None
    assert float(f"0.{more[1]}") == pytest.approx(sum_levels(2) - sum_levels(1))


def test_every_rule_of_the_table_that_tests_has_its_level_in_the_sum() -> None:
    table = TEXT.split("## The rules")[1].split("\n\n")[1]
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in table.splitlines()[2:]
    ]
    assert {
        rule for rule, _, speaks, _ in rows if "test" in speaks
    } == OF_A_TASK.keys() | OF_A_RUN.keys() | OF_A_COMPARISON.keys()
    assert f"add .00{round(1000 * sum(OF_A_COMPARISON.values()))}" in " ".join(TEXT.split())


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
