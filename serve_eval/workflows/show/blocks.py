"""Print a label and a text next to it, wrapped between words and shortened in its middle."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from serve_eval.report.layout import wrap

LABEL = 12
"""Columns of a label and the space after it."""
MOST_WIDTH = 100
"""Most columns of a text, even on a wider terminal: long lines are hard to read."""
MARK = "bold reverse"


def print_field(console: Console, label: str, text: str) -> None:
    """Print a label and a text."""
    print_text(console, label, text, most=None)


def print_text(
    console: Console,
    label: str,
    text: str,
    *,
    most: int | None,
    mark: tuple[int, int] | None = None,
) -> None:
    """Print a label and a text of at most `most` lines, and one in place of those left out.

    `mark` is the part of the text that is highlighted.
    """
    styled = Text(text.rstrip("\n"))
    if mark is not None:
        styled.stylize(MARK, *mark)
    width = max(20, min(console.width, MOST_WIDTH) - LABEL)
    lines = wrap(styled, width)
    for number, line in enumerate(shorten(lines, most)):
        head = Text(label.ljust(LABEL - 1) + " " if not number else " " * LABEL, style="dim")
        console.print(Text.assemble(head, line) if line else head[: len(label)], soft_wrap=True)


def shorten(lines: list[Text], most: int | None) -> list[Text]:
    """Return at most `most` lines and one about those left out: a third from the beginning."""
    if most is None or len(lines) <= most + 1:
        return lines
    head = most // 3
    left_out = Text(f"… {len(lines) - most} lines left out: --whole", style="dim")
    return [*lines[:head], left_out, *lines[head - most :]]
