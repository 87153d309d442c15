"""Test docs/scorers.md: it has every scorer and option, and the scores of its examples hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from serve_eval.plugins import registry
from serve_eval.schema import ExitReason
from tests.scorers.offered import ROWS
from tests.scorers.test_offered import NAMES, made, scored

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_has_a_row_for_every_scorer_but_the_one_with_a_page_of_its_own() -> None:
    named = {*(row[0] for row in ROWS), "judge"}
    assert [name for name in NAMES if name not in named] == [], "add a row to docs/scorers.md"
    assert named - set(NAMES) == set(), "docs/scorers.md names scorers that do not exist"
    page = (ROOT / "docs/judges.md").read_text()
    for option in registry.options_of(registry.function(registry.SCORERS, "judge")):
        assert re.search(rf"[ `]{option}[:`]", page), option


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_example_has_the_score_that_the_page_says(row: list[str]) -> None:
    name, _, _, expected, answer, points = row
    scorer = made(name, {})
    value = yaml.safe_load(expected.strip("`"))
    assert not scorer.problems(value)
    ended = ExitReason.PASSED if points == "1" else ExitReason.RAISED
    given = scored(scorer, value, answer.strip("`"), ended).value
    assert given == pytest.approx(float(points), abs=0.001), (
        f"{name} gives {answer} {given}, and its row in docs/scorers.md says {points}"
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_option_stands_there_with_its_default(row: list[str]) -> None:
    options = registry.options_of(registry.function(registry.SCORERS, row[0]))
    told = {
        found.partition(": ")[0]: found.partition(": ")[2]
        for found in re.findall(r"`([^`]+)`", row[2])
    }
    for name, parameter in options.items():
        default = parameter.default
        written = default if isinstance(default, str) else json.dumps(default)
        assert told[name].replace('"', "") == written.replace('"', "")
