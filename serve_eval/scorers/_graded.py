"""The score of an answer that may be partly right."""

from __future__ import annotations

from collections.abc import Mapping

from serve_eval.schema import Outcome, Score

FULL = "full marks"
"""The part that says how often all of the points were had."""


def grade_value(
    value: float,
    answer: str | None,
    parts: Mapping[str, float] | None = None,
    *,
    mode: str | None = None,
) -> Score:
    """Correct at 1, wrong at 0, partial between; `unparsed` when nothing was extracted. `mode` says
    how it failed, if it did.
    """
    if answer is None:
        outcome = Outcome.UNPARSED
    elif value >= 1.0:
        outcome = Outcome.CORRECT
    else:
        outcome = Outcome.PARTIAL if value > 0.0 else Outcome.WRONG
    return Score(
        value=value,
        outcome=outcome,
        answer=answer,
        parts=parts or {},
        mode=mode if value < 1.0 else None,
    )
