"""Lines fit a terminal, and commands in them can be copied."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from serve_eval.report.layout import say

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
    command = f"   change: serve-eval attribute {'long/' * 12}OUT for its servers, also in pairs"
    assert _print(command, terminal=True) == [command]
