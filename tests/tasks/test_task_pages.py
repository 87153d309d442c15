"""Rows of a new task are added to the pages, and what people wrote stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.protocol.shared import build_task
from serve_eval.schema import Spec
from tests.tasks import task_rows
from tests.tasks.generated_columns import (
    DATA_HEAD,
    TASKS_HEAD,
    list_folders,
    renew_row,
)
from tests.tasks.golden_prompts import OPTIONS, find_untried, say_refused, tried
from tests.tasks.made_data import NAMES, spec_of
from tests.tasks.mistakes import Mistake

TABLE = """Before.

| task | folders | files | columns |
|---|---|---|---|
| mixed_modality_* | as there | as there | as there |
| gsm8k, aime | by hand | | |

After.
"""
NOTICE = """Prompt templates
----------------

gsm8k                          theirs
judges, smoke tests, cases     ours

Extractors
"""


def test_a_row_is_the_last_of_its_table() -> None:
    page = task_rows.add_row(TABLE, DATA_HEAD, "| new | a | b | c |")
    assert page == TABLE.replace("| | |\n", "| | |\n| new | a | b | c |\n")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gsm8k", True),
        ("aime", True),
        ("mixed_modality_omni_alone", True),
        ("gsm8", False),
        ("as there", False),
        ("Before", False),
    ],
)
def test_a_row_may_name_several_tasks(name: str, found: bool) -> None:
    assert task_rows.is_in_table(TABLE, DATA_HEAD, name) is found


def test_the_source_of_a_prompt_that_a_person_wrote_stays() -> None:
    assert task_rows.say_notice(NOTICE, "gsm8k") == NOTICE
    assert task_rows.say_notice(NOTICE, "gsm8k_alone") == NOTICE


def test_a_task_file_that_does_not_say_where_its_prompt_is_from_is_named() -> None:
    with pytest.raises(Mistake, match=r"serve_eval/tasks/mmlu\.py:\d+: PROMPT_FROM is"):
        task_rows.say_notice(NOTICE, "mmlu")


def _readme(*rows: str) -> str:
    return "\n".join(["# A", "", task_rows.README_HEAD, "|---|---|", *rows, "", "## B", ""])


def test_a_name_joins_the_first_tasks_of_the_readme_whose_lines_stay_as_many() -> None:
    rows = ["| text | gsm8k, mmlu; more |", "| images | mmmu |", "| small | aime |"]
    readme = _readme(*rows)
    assert task_rows.say_readme(readme, "aime") == readme
    assert task_rows.say_readme(readme, "mmmu_alone") == readme
    assert task_rows.say_readme(readme, "new") == readme.replace("mmlu;", "mmlu, new;")
    seen = build_task(Spec(name="mmmu"))
    assert task_rows.say_readme(readme, "seen", seen) == readme.replace("mmmu", "mmmu, seen")
    longer, names = readme, [f"{'n' * 60}_{i}" for i in range(30)]
    for name in names:
        longer = task_rows.say_readme(longer, name)
    assert all(name in longer for name in names)
    assert len(longer.splitlines()) == len(readme.splitlines())


def test_a_readme_that_is_too_long_is_told_with_what_to_do() -> None:
    most = task_rows.LONGEST_README
    assert task_rows.find_too_long("line\n" * most) is None
    told = task_rows.find_too_long("line\n" * (most + 2)) or ""
    assert told.startswith("README.md has 152 lines, 2 more than it may have: move text from it")


ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_the_generated_columns_are_those_of_the_task(name: str, tmp_path: Path) -> None:
    task = build_task(spec_of(name, tmp_path))
    page = (ROOT / "docs/tasks.md").read_text("utf-8")
    assert task_rows.is_in_table(page, TASKS_HEAD, name)
    assert task_rows.say_task(page, name, task)[1] == [], "run make task-pages"
    page = (ROOT / "docs/datasets.md").read_text("utf-8")
    changed = renew_row(page, DATA_HEAD, name, list_folders(task), NAMES)
    assert changed == (page, []), "run make task-pages"


def test_a_task_that_changed_renews_its_columns_and_no_others() -> None:
    page = (ROOT / "docs/tasks.md").read_text("utf-8")
    task = build_task(Spec(name="aime"))
    changed = replace(
        task,
        chat=False,
        metric=replace(task.metric, name="wer", higher_is_better=False),
        hypothesis=replace(task.hypothesis, num_samples=31),
    )
    renewed, told = task_rows.say_task(page, "aime", changed)
    assert told == [
        "aime: value was 'accuracy', is 'wer, lower is better'",
        "aime: n was '30', is '31'",
        "aime: API was 'chat', is 'completions'",
    ]
    old, new = (
        "| aime | accuracy | 30 | chat | ",
        "| aime | wer, lower is better | 31 | completions | ",
    )
    assert old in page
    assert renewed == page.replace(old, new)
    assert task_rows.say_task(renewed, "aime", task)[0] == page


def test_a_row_written_by_hand_for_a_pattern_stays() -> None:
    assert renew_row(TABLE, DATA_HEAD, "gsm8k", ["x"], ["gsm8k"]) == (TABLE, [])
    renewed, told = renew_row(TABLE, DATA_HEAD, "gsm8k", ["x"], ["gsm8k", "aime"])
    assert renewed == TABLE.replace("by hand", "x")
    assert told == ["gsm8k: folders was 'by hand', is 'x'"]


def test_listed_options_add_to_those_that_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "passkey_short", [{"sentences": 5}])
    assert tried("passkey_short") == [
        {"sentences": 5},
        {"apply_chat_template": True},
        {"random_seed": 1},
    ]
    assert find_untried("passkey_short") == []
    told = say_refused("passkey_short", {"random_seed": "refused"}).splitlines()
    assert told[2].startswith("Write this line in place of its own in OPTIONS of tests/tasks/")
    assert told[3] == '    "passkey_short": [{"sentences": 5}, {"random_seed": VALUE}],'
