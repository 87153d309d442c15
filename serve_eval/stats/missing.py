"""Bound a value for missing answers (Manski 1989, "Anatomy of the selection problem")."""

from __future__ import annotations

from serve_eval.errors import ServeEvalError


def bound_missing(
    total: float, scored: int, planned: int, worst: float, best: float
) -> tuple[float, float]:
    """Return the lowest and highest mean over `planned` samples if only `scored` of them are known.

    `total` is the sum of the known scores; `worst` and `best` are the ends of the metric's range in
    the same unit. Raises ServeEvalError if nothing was planned or more was scored than planned.
    """
    if planned < 1 or not 0 <= scored <= planned:
        raise ServeEvalError(f"{scored} samples of {planned} planned ones cannot have been scored")
    missing = planned - scored
    return (total + missing * worst) / planned, (total + missing * best) / planned
