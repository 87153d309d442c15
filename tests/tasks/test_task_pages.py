"""Rows of a new task are added to the pages, and what people wrote stays."""

from __future__ import annotations

import pytest

from serve_eval.protocol.shared import build_task
from serve_eval.schema import Spec
from tests.tasks import task_rows
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
    page = task_rows.add_row(TABLE, task_rows.DATA_HEAD, "| new | a | b | c |")
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
    assert task_rows.is_in_table(TABLE, task_rows.DATA_HEAD, name) is found


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
