"""Test that the commands of every page are ones that the command line takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.commands import PAGES, list_commands, read_command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_can_be_read(page: Path) -> None:
    for command in list_commands(page):
        try:
            read_command(command.words)
        except Exception as error:
            pytest.fail(f"serve-eval {' '.join(command.words)}: {error!r} {error}")


def test_a_command_that_does_not_exist_is_noticed() -> None:
    for words in (
        ["run", "--no-such-flag"],
        ["nothing"],
        ["references", "power", "--samples", "many"],
    ):
        with pytest.raises(Exception, match=r".*"):
            read_command(words)


def test_most_commands_of_the_pages_are_found() -> None:
    assert sum(len(list(list_commands(page))) for page in PAGES) > 120
