"""Break lines between words to fit the columns of standard output."""

from __future__ import annotations

import os
import textwrap

LEAST = 24
"""Columns below which lines are not made shorter."""


def find_width() -> int | None:
    """Return the columns of the output, or None if its lines need not be broken."""
    from serve_eval.cli._streams import columns_of_stdout, is_terminal

    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return max(LEAST, int(told))
    return max(LEAST, columns_of_stdout()) if is_terminal() else None


def wrap(text: str, width: int | None, *, first: int, others: int) -> str:
    """Return a text that begins in column `first`, with its other lines indented.

    It is broken between words, so that a longer word goes beyond `width`.
    """
    if width is None:
        return text
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=" " * first,
        subsequent_indent=" " * others,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )
    return "\n".join(lines)[first:]
