"""What the task and the scorer share."""

from __future__ import annotations

import re


def last_number(text: str) -> float | None:
    """The last number of a text; None when there is none."""
    found = re.findall(r"-?\d+(?:\.\d+)?", text)
    return float(found[-1]) if found else None
