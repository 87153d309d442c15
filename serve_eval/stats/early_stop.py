"""Stop early when the classic verdict of the full run is already as good as certain.

The full run's mean is the mean of a finite population, of which a random permutation shows one value after the other.
Two gamblers bet on each value: one against "the full run fails", one against "the full run passes". Exactly one of
these is true, so the wrong gambler reaches 1 / eps with probability eps at most, however often one looks (Ville 1939).
Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", arXiv 2010.09686, without
replacement.

Two conditions are the caller's: the order of the prompts is a random permutation drawn for this run, and values arrive
in that order without gaps. Values in the order of completion make it wrong: slow answers are not like fast ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from serve_eval.errors import ServeEvalError
from serve_eval.stats.betting import GRID
from serve_eval.stats.classic import Decision
from serve_eval.stats.inputs import check_count, check_level

# Nearer to the end of the range than this the remaining mean is rounding, and no bet is placed.
ROUNDING = 1e-9


class Wealth:
    """The wealth of a bet against "the mean of all values is at most `null`".

    `n` is the size of the finite population, or None for values drawn from one without end. Values lie in `lo`..`hi`.
    The stakes of `GRID` are played side by side and averaged.
    """

    __slots__ = ("_left", "_lo", "_sum", "_wealths", "_width")

    def __init__(self, null: float, n: int | None, lo: float, hi: float) -> None:
        self._lo, self._width = lo, hi - lo
        self._left = n
        # What the remaining values must sum to for the mean to be `null`; with no end, `null` itself.
        self._sum = null if n is None else null * n
        self._wealths = [1.0] * len(GRID)

    def bet(self, value: float) -> float:
        """Play one value; the wealth after it. Where the hypothesis has become impossible it is infinite.

        m = (n null - sum of earlier values) / (values left); each wealth grows by 1 + g (value - m) / (m - lo).
        Where m >= hi the hypothesis allows everything and nothing is staked.
        """
        left = self._left
        if left is None:
            room = self._sum - self._lo
        else:
            room = self._sum / left - self._lo
            self._sum -= value
            self._left = left - 1
        if ROUNDING < room < self._width:
            step = (value - self._lo) / room - 1.0
            self._wealths = [wealth * (1.0 + g * step) for wealth, g in zip(self._wealths, GRID, strict=True)]
        elif room < -ROUNDING:
            self._wealths = [math.inf] * len(GRID)
        return sum(self._wealths) / len(GRID)

    @property
    def log(self) -> float:
        """Natural logarithm of the wealth."""
        mean = sum(self._wealths) / len(GRID)
        return math.log(mean) if mean > 0.0 else -math.inf


class EarlyClassic:
    """Decides PASS or FAIL before the end, equal to the full run's verdict except with probability `eps` at most.

    The full verdict is FAIL exactly when the mean of all `n` values is below `threshold`. Values are oriented so that
    lower is worse and lie in `lo`..`hi`. With stored pairs they are differences (`paired`); with only the reference's
    mean known they are the candidate's scores (`mean_only`), which needs more samples. Raises ServeEvalError for n
    below 1, eps outside (0, 1), an empty or infinite range, or a value outside it.
    """

    def __init__(self, n: int, threshold: float, *, lo: float, hi: float, eps: float = 0.01) -> None:
        check_count("the number of planned samples", n, 1)
        check_level("eps", eps)
        if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi and math.isfinite(threshold)):
            raise ServeEvalError(
                f"an early stop needs a metric with a finite range and threshold, not {lo}..{hi} and {threshold}",
                hint="run metrics without a range, such as perplexity, to the end",
            )
        self.n, self.eps = n, eps
        self.looked_at = 0
        self.decision: Decision | None = None
        self._lo, self._hi, self._needed = lo, hi, 1.0 / eps
        self._width = width = hi - lo
        # Both bets are played on a scale of width 1, so that one rounding limit fits all metrics.
        self._pass = Wealth((threshold - lo) / width, n, 0.0, 1.0)
        self._fail = Wealth((hi - threshold) / width, n, 0.0, 1.0)

    @classmethod
    def paired(cls, n: int, margin: float, *, eps: float = 0.01, span: float = 1.0) -> EarlyClassic:
        """For differences candidate - reference (negative is worse) of a metric whose range has the width `span`.

        The full verdict is FAIL when their mean is below -`margin`.
        """
        return cls(n, -margin, lo=-span, hi=span, eps=eps)

    @classmethod
    def mean_only(
        cls, n: int, threshold: float, *, lo: float = 0.0, hi: float = 1.0, eps: float = 0.01
    ) -> EarlyClassic:
        """For the candidate's scores, with only the threshold known. When lower is better, negate all of them."""
        return cls(n, threshold, lo=lo, hi=hi, eps=eps)

    def update(self, values: Iterable[float]) -> Decision | None:
        """The next values of the prefix, in order. The decision once there is one; later values do not change it."""
        lo, hi, width, needed = self._lo, self._hi, self._width, self._needed
        to_pass, to_fail = self._pass.bet, self._fail.bet
        for value in values:
            if self.decision is not None:
                break
            if not lo <= value <= hi:
                raise ServeEvalError(
                    f"the value {value} lies outside {lo:g}..{hi:g}",
                    hint="check the unit of the scores; hand a missing score to update_missing()",
                )
            self._count()
            above = (value - lo) / width
            if to_pass(above) >= needed:
                self.decision = Decision.PASS
            elif to_fail(1.0 - above) >= needed:
                self.decision = Decision.FAIL
        return self.decision

    def update_missing(self, worst: float, best: float) -> Decision | None:
        """The next prompt of the prefix stays missing: each bet takes the end of its range that makes it poorer."""
        if not self._lo <= worst <= best <= self._hi:
            raise ServeEvalError(
                f"a missing value cannot lie in {worst}..{best}",
                hint=f"give the worst and the best value within {self._lo:g}..{self._hi:g}",
            )
        if self.decision is None:
            self._count()
            if self._pass.bet((worst - self._lo) / self._width) >= self._needed:
                self.decision = Decision.PASS
            elif self._fail.bet((self._hi - best) / self._width) >= self._needed:
                self.decision = Decision.FAIL
        return self.decision

    @property
    def log_wealth_pass(self) -> float:
        """Natural logarithm of the wealth of the bet against "the full run fails"."""
        return self._pass.log

    @property
    def log_wealth_fail(self) -> float:
        """Natural logarithm of the wealth of the bet against "the full run passes"."""
        return self._fail.log

    def _count(self) -> None:
        if self.looked_at == self.n:
            raise ServeEvalError(f"more values than the {self.n} planned samples", hint="give each prompt once")
        self.looked_at += 1
