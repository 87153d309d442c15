"""Check a score that a scorer returned."""

from __future__ import annotations

import functools
import math
from enum import StrEnum
from typing import Any

import msgspec

from serve_eval.errors import ExternalCodeError
from serve_eval.plugins._wanted import brief, escape, is_a

SLACK = 1e-9
"""Amount by which rounding may carry a score beyond its range."""


def check_score(score: Any, told: str, lo: float | None, hi: float | None) -> Any:
    """Return a score with the exact types of a Score and a value from `lo` to `hi`.

    Similar types, such as numpy's, are converted. Raises ExternalCodeError, whose message names
    the function as `told` does.
    """
    if not is_a(score, "Score"):
        raise ExternalCodeError(
            f"{told} must return a Score of serve_eval.schema, not {brief(score)}"
        )
    if _is_exact(score, lo, hi):
        return score
    begin = f"{told} must return a Score whose"
    if not isinstance(score.mode, str | None):
        raise ExternalCodeError(f"{begin} mode is a text or None, not {brief(score.mode)}")
    try:
        parts = dict(score.parts.items())
    except (AttributeError, TypeError):
        raise ExternalCodeError(f"{begin} parts are a mapping, not {brief(score.parts)}") from None
    return msgspec.structs.replace(
        score,
        value=_to_float(score.value, f"{begin} value is", lo, hi),
        outcome=_to_outcome(score, begin),
        answer=None if score.answer is None else str(score.answer),
        parts={
            escape(str(name)): _to_float(part, f"{begin} part {name!r} is", None, None)
            for name, part in parts.items()
        },
    )


def _is_exact(score: Any, lo: float | None, hi: float | None) -> bool:
    """Return True for a score that nothing is to be converted in, as nearly all are."""
    value = score.value
    return (
        value.__class__ is float
        and (-math.inf if lo is None else lo) <= value <= (math.inf if hi is None else hi)
        and math.isfinite(value)
        and score.outcome.__class__ is _find_outcomes(score.__class__)
        and (score.answer is None or score.answer.__class__ is str)
        and (score.mode is None or score.mode.__class__ is str)
        and score.parts.__class__ is dict
        and not score.parts
    )


def _to_float(value: Any, told: str, lo: float | None, hi: float | None) -> float:
    """Return a finite number within a range. Raises ExternalCodeError."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    low, high = -math.inf if lo is None else lo, math.inf if hi is None else hi
    if math.isfinite(number) and low - SLACK <= number <= high + SLACK:
        return number
    wanted = "a finite number" if lo is None and hi is None else f"from {low:g} to {high:g}"
    raise ExternalCodeError(f"{told} {wanted}, not {brief(value)}")


def _to_outcome(score: Any, begin: str) -> StrEnum:
    outcomes = _find_outcomes(score.__class__)
    try:
        return outcomes(score.outcome)
    except ValueError:
        words = ", ".join(outcomes)
        raise ExternalCodeError(
            f"{begin} outcome is one of {words}, not {brief(score.outcome)}"
        ) from None


@functools.cache
def _find_outcomes(kind: Any) -> type[StrEnum]:
    """Return the class of a Score's outcome."""
    found = {field.name: field.type for field in msgspec.structs.fields(kind)}
    outcomes: type[StrEnum] = found["outcome"]
    return outcomes
