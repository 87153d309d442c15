"""Lines fit a terminal, and commands in them can be copied."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from serve_eval.report.layout import say, wrap

LONG = "alone: generation server http://node:8001/v1: 52 of 52 wrong, the others 0 of 48"


def _print(text: str, *, terminal: bool) -> list[str]:
    console = Console(file=io.StringIO(), record=True, width=40, force_terminal=terminal)
    say(console, text)
    return console.export_text().splitlines()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            LONG,
            [
                "alone: generation server",
                "  http://node:8001/v1: 52 of 52 wrong,",
                "  the others 0 of 48",
            ],
        ),
        (
            f"   {LONG}",
            [
                "   alone: generation server",
                "     http://node:8001/v1: 52 of 52",
                "     wrong, the others 0 of 48",
            ],
        ),
        ("short", ["short"]),
        ("", [""]),
    ],
)
def test_a_long_line_goes_on_below_its_beginning(text: str, lines: list[str]) -> None:
    assert _print(text, terminal=True) == lines
    assert _print(text, terminal=False) == [text]


def test_a_command_stays_whole() -> None:
    command = (
        f"   change: serve-eval check workers {'long/' * 12}OUT for its servers, also in pairs"
    )
    assert _print(command, terminal=True) == [command]


WORDS = st.lists(st.text("abc日\n", min_size=0, max_size=30), max_size=20).map(" ".join)


@settings(max_examples=40)
@given(WORDS, st.integers(4, 40))
def test_wrapped_lines_keep_every_word_whole_and_fit(text: str, width: int) -> None:
    lines = [line.plain for line in wrap(Text(text), width)]
    assert " ".join(lines).split() == text.split()
    assert all(cell_len(line) <= width or len(line.split()) == 1 for line in lines)
