"""Number reading shared by the task and the scorer."""

from __future__ import annotations

import re


def last_number(text: str) -> float | None:
    """Return the last number of a text, or None if there is none."""
    found = re.findall(r"-?\d+(?:\.\d+)?", text)
    return float(found[-1]) if found else None
