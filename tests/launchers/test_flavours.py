"""Test that the table of versions in docs/launched-servers.md shows what happens."""

from __future__ import annotations

import pytest

from tests.launchers.flavours import BEGIN, END, PAGE, table


@pytest.mark.slow
def test_the_page_tells_what_happens() -> None:
    text = PAGE.read_text()
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].splitlines()
    assert table() == written, "python -m tests.launchers.flavours write"
