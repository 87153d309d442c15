"""Compute the number of rejections that is consistent with the nominal level of a test."""

from __future__ import annotations

from serve_eval.stats.inputs import check_count, check_level


def acceptance_region(replicates: int, level: float, false_alarm: float = 0.001) -> tuple[int, int]:
    """Return the fewest and most rejections expected of `replicates` independent tests.

    The tests have the true level `level`. A correct level falls outside with probability at most
    `false_alarm`, half of it on either side (exact binomial quantiles). Raises ServeEvalError for
    no replicates, or a level or false alarm rate outside (0, 1).
    """
    check_count("the number of replicates", replicates, 1)
    check_level("the level", level)
    check_level("the false alarm rate", false_alarm)
    import numpy
    from scipy.special import bdtr

    below = bdtr(numpy.arange(replicates + 1), replicates, level)
    low, high = numpy.searchsorted(
        below, [false_alarm / 2.0, 1.0 - false_alarm / 2.0], side="right"
    )
    return int(low), int(high)
