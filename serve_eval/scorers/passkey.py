"""Score the repetition of a number that was hidden in a long text."""

from __future__ import annotations

import re

from serve_eval.schema import Outcome, Score

FIRST, CONTAINED = "first_digits", "contained"
_DIGITS = re.compile(r"\d+")


def first_digits(text: str, target: str) -> Score:
    """Score 1 if the first run of digits is the target, as in TensorRT-LLM's suite.

    The parts also say if any run is.
    """
    runs = _DIGITS.findall(text)
    parts = {FIRST: float(runs[:1] == [target]), CONTAINED: float(target in runs)}
    if not runs:
        return Score(value=0.0, outcome=Outcome.UNPARSED, parts=parts)
    outcome = Outcome.CORRECT if parts[FIRST] else Outcome.WRONG
    return Score(value=parts[FIRST], outcome=outcome, answer=runs[0], parts=parts)
