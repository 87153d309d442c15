"""Test the words for a proven change that fails no suite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_eval.schema import SuiteRow, VerdictOutcome
from serve_eval.workflows.suite.rows import describe_proven
from tests.workflows.suite.test_judgement import _row

DROP = replace(
    _row(0, 0.01, True, "classic"),
    outcome=VerdictOutcome.PASS,
    proven="drop",
    proven_p=0.02,
    p_rise=0.03,
    evaluated=70.0,
    reference=71.0,
    threshold=69.0,
    margin=1.5,
    default_margin=False,
    higher_is_better=True,
    difference=-1.0,
    difference_interval=(-1.4, -0.6),
    in_points=True,
)
PAIRED: dict[str, Any] = {"rule": "paired"}
SHARES: dict[str, Any] = {"in_points": False, "difference": -0.5, "difference_interval": None}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {},
            "a drop is proven: drop 1.0 (0.6 to 1.4, 95 %), 70.0 against 71.0,"
            " one-sided p = 0.0100, Holm p = 0.0200; it passes because classic fails only values"
            " below 69.0",
        ),
        ({"higher_is_better": False, "p": None, "proven_p": None}, "fails only values above 69.0"),
        ({"threshold": None}, "Holm p = 0.0200"),
        (PAIRED, "because a drop of the margin, 1.5 points, is excluded"),
        (PAIRED | {"default_margin": True}, "margin, 1.5 points (the default), is excluded"),
        (PAIRED | {"margin": None}, "Holm p = 0.0200"),
        (PAIRED | SHARES, "of the margin, 1.500, is excluded"),
        ({"outcome": VerdictOutcome.INCONCLUSIVE}, "Holm p = 0.0200"),
        ({"proven": "rise", "difference": 1.0, "p_rise": None}, "Holm p = 0.0200"),
    ],
)
def test_a_proven_change_comes_with_its_figures_and_why_it_passes(
    fields: dict[str, Any], said: str
) -> None:
    told = describe_proven(replace(DROP, **fields))
    assert told.endswith(said), told


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        (SHARES, "a drop is proven: worse by 0.5000, 70.00 against 71.00, one-sided p = 0.0100"),
        (
            {"proven": "rise", "difference": 1.0, "difference_interval": (0.6, 1.4)},
            "a rise is proven: gain 1.0 (0.6 to 1.4, 95 %), 70.0 against 71.0, one-sided p = 0.03",
        ),
        ({"evaluated": None}, "a drop is proven: drop 1.0 (0.6 to 1.4, 95 %), one-sided p = 0.01"),
    ],
)
def test_its_unit_is_that_of_the_row(fields: dict[str, Any], begins: str) -> None:
    told = describe_proven(replace(DROP, **fields))
    assert told.startswith(begins), told


@pytest.mark.parametrize(
    "fields", [{"proven": ""}, {"outcome": VerdictOutcome.FAIL}, {"difference": None}]
)
def test_nothing_is_said_where_a_fail_says_it_or_nothing_is_known(fields: dict[str, Any]) -> None:
    row: SuiteRow = replace(DROP, **fields)
    assert describe_proven(row) == ""
