"""Bound the rate of failed requests, which is checked separately from the scores."""

from __future__ import annotations

from serve_eval.errors import ServeEvalError
from serve_eval.stats.inputs import check_count, check_level


def failure_rate_upper(failures: int, n: int, confidence: float = 0.95) -> float:
    """Return a one-sided upper bound of the failure rate, as a proportion.

    `failures` of `n` requests failed. The bound is the rate at which so few failures have
    probability 1 - confidence: the quantile of Beta(failures + 1, n - failures) (Clopper and
    Pearson 1934). An objective of 1 % holds if the bound is at most 0.01. Raises ServeEvalError for
    impossible counts or a confidence outside (0, 1).
    """
    check_count("the number of requests", n, 1)
    check_count("the number of failures", failures)
    check_level("confidence", confidence)
    if failures > n:
        raise ServeEvalError(
            f"{failures} of {n} requests cannot have failed", hint="count each request once"
        )
    if failures == n:
        return 1.0
    from scipy.special import betaincinv

    return float(betaincinv(failures + 1, n - failures, confidence))
