"""Score an answer that may be partly right."""

from __future__ import annotations

from collections.abc import Mapping

from serve_eval.schema import Outcome, Score

FULL = "full marks"
"""Part of a score: the share of answers with all points."""


def grade_value(
    value: float,
    answer: str | None,
    parts: Mapping[str, float] | None = None,
    *,
    mode: str | None = None,
) -> Score:
    """Return a score that is correct at 1, wrong at 0, and partial between.

    It is `unparsed` if nothing was extracted. `mode` is the way in which the answer failed, if it
    did.
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
