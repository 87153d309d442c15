"""Check numbers that several tests share. Each check raises ServeEvalError with a hint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import ArrayLike, NDArray

    FloatArray = NDArray[numpy.float64]
    IntArray = NDArray[numpy.int64]


def check_level(name: str, value: float) -> None:
    """Raise ServeEvalError unless an error rate or a confidence is strictly between 0 and 1.

    Error rates are alpha, beta and eps.
    """
    if not 0.0 < value < 1.0:
        raise ServeEvalError(
            f"{name} must lie strictly between 0 and 1, not {value}",
            hint=f"give {name} as a proportion, e.g. 0.05",
        )


def check_margin(margin: float) -> None:
    """Raise ServeEvalError unless a margin is finite and not negative.

    A margin is the size up to which a drop counts as harmless.
    """
    if not (math.isfinite(margin) and margin >= 0.0):
        raise ServeEvalError(
            f"the margin must be a finite number, 0 or more, not {margin}",
            hint=(
                "give the size of the drop without a sign; the direction follows from"
                " higher_is_better"
            ),
        )


def check_count(name: str, value: int, least: int = 0) -> None:
    """Raise ServeEvalError unless a count is a whole number of at least `least`."""
    if value != int(value):
        raise ServeEvalError(
            f"{name} must be a whole number, not {value}", hint="count prompts, not proportions"
        )
    if value < least:
        raise ServeEvalError(
            f"{name} must be {least} or more, not {value}", hint=f"check how {name} was counted"
        )


def float_row(name: str, values: ArrayLike) -> FloatArray:
    """Return one finite number per sample as an array, for values that cannot be missing."""
    import numpy

    row = numpy.asarray(values, dtype=numpy.float64)
    if row.ndim != 1 or row.size == 0:
        raise ServeEvalError(
            f"{name} must be a list of one or more numbers", hint="evaluate at least one sample"
        )
    if not numpy.isfinite(row).all():
        place = int(numpy.flatnonzero(~numpy.isfinite(row))[0])
        raise ServeEvalError(
            f"{name} must be finite numbers; the one at position {place} is {row[place]}",
            hint="leave missing values out, or pass missing scores to pair() as NaN",
        )
    return row


def check_p_values(p: Sequence[float]) -> None:
    """Raise ServeEvalError unless all p-values are numbers from 0 to 1."""
    for place, value in enumerate(p):
        if not 0.0 <= value <= 1.0:
            raise ServeEvalError(
                f"p-values lie between 0 and 1; the one at position {place} is {value}",
                hint=(
                    "leave out tests that have no p-value, such as those with fewer than two pairs"
                ),
            )
