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
    assert find_wrong_options(row) == []


def find_wrong_options(row: list[str]) -> list[str]:
    """Return what is wrong with the options of a row: those of the scorer with their defaults."""
    options = registry.options_of(registry.function(registry.SCORERS, row[0]))
    shown = [found.partition(": ") for found in re.findall(r"`([^`]+)`", row[2])]
    told = {name: value.replace('"', "") for name, colon, value in shown if colon}
    where = f"docs/scorers.md: the row of {row[0]}"
    wrong = []
    for name, option in options.items():
        default = option.default
        written = default if isinstance(default, str) else json.dumps(default)
        written = written.replace('"', "")
        if name not in told:
            wrong.append(f"{where} lacks the option `{name}: {written}`")
        elif told[name] != written:
            wrong.append(f"{where} has `{name}: {told[name]}`, and its default is {written}")
    unknown = [name for name in told if name not in options and name.isidentifier()]
    wrong += [
        f"{where} names the option {name}, which does not exist.{registry.nearest(name, options)}"
        for name in unknown
    ]
    return wrong


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        (
            "`whole_words: false`",
            "`whole_word: false`",
            [
                "lacks the option `whole_words: false`",
                "names the option whole_word, which does not exist. Did you mean 'whole_words'?",
            ],
        ),
        ("`whole_words: false`, ", "", ["lacks the option `whole_words: false`"]),
        (
            "`whole_words: false`",
            "`whole_words: true`",
            ["has `whole_words: true`, and its default is false"],
        ),
        ("`whole_words: false`", "`whole_words`", ["lacks the option `whole_words: false`"]),
    ],
)
def test_a_wrong_option_of_a_row_is_named(right: str, wrong: str, told: list[str]) -> None:
    [row] = [one for one in ROWS if one[0] == "words"]
    assert right in row[2]
    changed = [*row[:2], row[2].replace(right, wrong), *row[3:]]
    said = [f"docs/scorers.md: the row of words {one}" for one in told]
    assert find_wrong_options(changed) == said
