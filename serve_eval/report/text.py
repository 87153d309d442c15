"""Make text from other sources safe to print."""

from __future__ import annotations

import re

_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[@-~]?", re.DOTALL
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Return `text` without control sequences, control characters and text direction marks.

    Tabs and newlines are kept.
    """
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))
