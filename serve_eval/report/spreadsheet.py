"""Keep spreadsheets from running texts of other sources as formulas."""

from __future__ import annotations

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Beginnings of a cell that a spreadsheet may run (OWASP, CSV injection)."""


def disarm(cell: str) -> str:
    """Return a text with an apostrophe in front if a spreadsheet would run it as a formula."""
    return f"'{cell}" if cell.startswith(FORMULA) else cell
