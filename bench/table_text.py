"""Tables as text of at most 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

WIDEST = 100


def format_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table: a title, a head and rows, the first column to the left, the others right.

    A head may have several lines, separated by `|`. Raises ValueError for a line that is too long.
    """
    heads = [cell.split("|") for cell in head]
    deep = max(map(len, heads))
    lines = [[cell[i] if i < len(cell) else "" for cell in heads] for i in range(deep)]
    lines += [list(row) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    texts = [title, ""]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        texts.append("  ".join(cells).rstrip())
    if long := [text for text in texts if len(text) > WIDEST]:
        raise ValueError(f"{len(long[0])} columns: {long[0]}")
    return "\n".join(texts)


def ms(value: float | None) -> str:
    """Return seconds as milliseconds with three digits; None as `grows`."""
    return "grows" if value is None else digits(1000 * value)


def digits(value: float) -> str:
    """Return a number with three significant digits, or all before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if value == 0:
        return "0"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
