"""Group the outcomes of answers for pictures, and choose their colours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serve_eval.report.pictures.vega import BAD, FAINT, GOOD, OTHER, WARN
from serve_eval.schema import Outcome

RIGHT, PARTIAL, WRONG, UNREADABLE, FAILED = "right", "partly right", "wrong", "unreadable", "failed"
COLOURS: Final[Mapping[str, str]] = {
    RIGHT: GOOD,
    PARTIAL: OTHER,
    WRONG: BAD,
    UNREADABLE: WARN,
    FAILED: FAINT,
}
"""The groups in the order in which they are drawn."""
_GROUPS: Final[Mapping[str, str]] = {
    Outcome.CORRECT: RIGHT,
    Outcome.PARTIAL: PARTIAL,
    Outcome.WRONG: WRONG,
}


def group_outcome(outcome: str | None) -> str:
    """Return the group of an outcome; None is a request without an answer."""
    return FAILED if outcome is None else _GROUPS.get(outcome, UNREADABLE)
