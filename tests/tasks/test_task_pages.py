"""Rows of a new task are added to the pages, and what people wrote stays."""

from __future__ import annotations

import pytest

from serve_eval.plugins import registry
from tests.tasks import task_pages

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
    page = task_pages.add_row(TABLE, task_pages.DATA_HEAD, "| new | a | b | c |")
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
    assert task_pages.is_in_table(TABLE, task_pages.DATA_HEAD, name) is found


def test_the_source_of_a_prompt_that_a_person_wrote_stays() -> None:
    assert task_pages.say_notice(NOTICE, "gsm8k") == NOTICE
    assert task_pages.say_notice(NOTICE, "gsm8k_alone") == NOTICE


def test_a_task_file_that_does_not_say_where_its_prompt_is_from_is_named() -> None:
    with pytest.raises(task_pages.Missing, match=r"serve_eval/tasks/mmlu\.py: PROMPT_FROM is"):
        task_pages.say_notice(NOTICE, "mmlu")


def test_a_name_joins_the_first_tasks_of_the_readme() -> None:
    readme = "# A\n\n## Tasks\n\nBuilt in: gsm8k, mmlu; for small models aime.\n\n## B\n\nmore\n"
    assert task_pages.say_readme(readme, "aime") == readme
    assert task_pages.say_readme(readme, "new") == readme.replace("mmlu;", "mmlu, new;")
    names = [f"{name}_of_some_length" for name in registry.list_shipped("serve_eval.tasks")]
    for name in names:
        readme = task_pages.say_readme(readme, name)
    assert all(name in readme for name in names)
    assert max(map(len, readme.splitlines())) <= task_pages.WIDTH
    assert " ".join(readme.split()).endswith("; for small models aime. ## B more")
