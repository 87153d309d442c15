"""Write numbers so that small ones keep their size. Pure."""

from __future__ import annotations


def write_number(value: float, decimals: int = 3) -> str:
    """Return a number with these decimals, or with two digits if they would all be zero."""
    text = f"{value:.{decimals}f}"
    if value and not text.strip("-0."):
        return f"{value:.2g}"
    return text
