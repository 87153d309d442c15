"""Print rows of a label and a text, without a break inside a word."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from serve_eval.report.layout import wrap
from serve_eval.report.text import clean

LABEL = 9
"""Width of the column of labels."""
STYLES = {"warning": "yellow", "error": "red", "why": "bold"}


def print_rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print rows. On a terminal, long texts continue below the text, not below the label.

    Anywhere else a row is one line, which a search finds as a whole.
    """
    width = max(20, console.width - LABEL - 1)
    for label, text in rows:
        styled = Text(clean(text), style=STYLES.get(label, ""))
        parts = wrap(styled, width) if console.is_terminal and label else [styled]
        for i, part in enumerate(parts):
            name = "" if i else label
            space = " " if len(name) >= LABEL else ""
            line = Text().append(f" {name:<{LABEL}}{space}", style=STYLES.get(label, "dim"))
            line.append_text(part)
            line.rstrip()
            console.print(line, soft_wrap=True)


def join_row(row: tuple[str, str]) -> str:
    """Return a row as one line of text."""
    return ": ".join(filter(None, row))
