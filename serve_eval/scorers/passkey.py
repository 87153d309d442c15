"""Score the repetition of a number that was hidden in a long text."""

from __future__ import annotations

import re

from serve_eval.schema import Score
from serve_eval.scorers._expected import grade_value

FIRST, CONTAINED = "first_digits", "contained"
_DIGITS = re.compile(r"\d+")


def first_digits(text: str, target: str) -> Score:
    """Score 1 if the first run of digits is the target, as in TensorRT-LLM's suite.

    The parts also say if any run is.
    """
    runs = _DIGITS.findall(text)
    parts = {FIRST: float(runs[:1] == [target]), CONTAINED: float(target in runs)}
    return grade_value(parts[FIRST], runs[0] if runs else None, parts)
