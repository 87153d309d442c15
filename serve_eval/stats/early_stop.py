"""Stop early once the classic verdict of the full run is almost certain.

The full run's mean is the mean of a finite population, of which a random permutation shows one
value after the other. Two gamblers bet on each value: one against "the full run does not pass",
with every missing answer at its worst, one against "the full run does not fail", with every missing
answer at its best. Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables
by betting", arXiv 2010.09686, without replacement. A third bet is against "too many answers are
missing" (`answered`). A decision needs one of the first two and the third at the same moment.

How eps is split: if too many are missing, only the third bet can err, so it needs a wealth of 1 /
eps. Otherwise the third does not matter. Without missing answers one of the first two hypotheses is
true. If missing answers leave the threshold between the bounds of the value, both are true, and the
full run is undecided. Each of the two therefore needs a wealth of 2 / eps. A true hypothesis's
wealth reaches 1 / p with probability at most p, for any number of looks (Ville 1939), so an early
verdict differs from the full run's with probability at most eps in all three cases.

The caller ensures two conditions: the order of the prompts is a random permutation drawn for this
run, and values arrive in that order without gaps. Values in the order of completion are not valid:
slow answers differ from fast ones.

A run with too many missing answers is undecided. Before an early decision it must therefore be
almost certain that not too many will be missing. The hypothesis "more than `most` of all are
missing" is nearest to the truth at F = most + 1: with more of them, a missing answer is likelier
still. The wealth is the probability of the prefix with j missing answers in the whole over that
with F, averaged over j below F. A prefix of k prompts, of which m are missing in given places, has
the probability [j]_m [n - j]_(k - m) / [n]_k, where [a]_b = a (a - 1) ... (a - b + 1). Such a ratio
is a martingale under F missing, so the wealth reaches 1 / eps with probability at most eps, for any
number of looks (Ville 1939).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from serve_eval.errors import ServeEvalError
from serve_eval.stats.betting import GRID
from serve_eval.stats.classic import Decision
from serve_eval.stats.inputs import check_count, check_level

# If the remaining mean is nearer than this to the end of the range, it is a rounding error and no
# bet is placed.
ROUNDING = 1e-9


class Wealth:
    """The wealth of a bet against "the mean of all values is at most `null`".

    `n` is the size of the finite population, or None for an infinite one. Values are in `lo`..`hi`.
    The stakes of `GRID` are played in parallel and averaged.
    """

    __slots__ = ("_left", "_lo", "_sum", "_wealths", "_width")

    def __init__(self, null: float, n: int | None, lo: float, hi: float) -> None:
        self._lo, self._width = lo, hi - lo
        self._left = n
        # The sum of the remaining values at which the mean is `null`; `null` itself if n is None.
        self._sum = null if n is None else null * n
        self._wealths = [1.0] * len(GRID)

    def bet(self, value: float) -> float:
        """Bet on one value and return the wealth after it.

        m = (n null - sum of earlier values) / (values left); each wealth grows by 1 + g (value - m)
        / (m - lo). If m >= hi the hypothesis allows everything and nothing is staked. Once the
        hypothesis is impossible, the wealth is infinite.
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
            self._wealths = [
                wealth * (1.0 + g * step) for wealth, g in zip(self._wealths, GRID, strict=True)
            ]
        elif room < -ROUNDING:
            self._wealths = [math.inf] * len(GRID)
        return sum(self._wealths) / len(GRID)

    @property
    def log(self) -> float:
        """Natural logarithm of the wealth."""
        mean = sum(self._wealths) / len(GRID)
        return math.log(mean) if mean > 0.0 else -math.inf


class Bet(Protocol):
    """A bet on one value after the other, each scaled to 0..1; `bet` returns the wealth."""

    def bet(self, value: float, /) -> float: ...

    @property
    def log(self) -> float: ...


def never() -> bool:
    """Return False: never delay a decision."""
    return False


class EarlyVerdict:
    """Decide PASS or FAIL before the end.

    Values are oriented so that lower is worse, within `lo`..`hi`. A decision needs, at the same
    moment, a wealth of `needed` of one of the two bets and a wealth of 1 / `eps` of the bet that at
    most `max_missing` of the `n` planned answers will be missing. `held` is called only if there
    would be a decision; it delays the decision while it returns True. Raises ServeEvalError for n
    below 1, eps outside (0, 1), an empty or infinite range, or a value outside it.
    """

    def __init__(
        self,
        n: int,
        *,
        lo: float,
        hi: float,
        to_pass: Bet,
        to_fail: Bet,
        needed: float,
        eps: float,
        max_missing: float,
    ) -> None:
        self.n, self.eps = n, eps
        self.looked_at = self.missing = 0
        self.decision: Decision | None = None
        self.held: Callable[[], bool] = never
        self._lo, self._hi, self._width = lo, hi, hi - lo
        self._pass, self._fail, self._needed = to_pass, to_fail, needed
        self._most_missing = most_missing(n, max_missing)

    def update(self, values: Iterable[float]) -> Decision | None:
        """Add the next values of the prefix, in order, and return the decision.

        Later values do not change it.
        """
        lo, hi = self._lo, self._hi
        for value in values:
            if self.decision is not None:
                break
            if not lo <= value <= hi:
                raise ServeEvalError(
                    f"the value {value} lies outside {lo:g}..{hi:g}",
                    hint="check the unit of the scores; pass a missing score to update_missing()",
                )
            self._take(value, value)
        return self.decision

    def update_missing(self, worst: float, best: float) -> Decision | None:
        """Count the next prompt of the prefix as missing, and return the decision.

        Each bet uses the end of its range that makes it poorer.
        """
        if self.decision is None:
            self.missing += 1
        return self.update_unknown(worst, best)

    def update_unknown(self, worst: float, best: float) -> Decision | None:
        """Add a prompt whose value is only known to be in a range, and return the decision.

        As `update_missing`, but the prompt does not count as missing.
        """
        self._check_range(worst, best)
        if self.decision is None:
            self._take(worst, best)
        return self.decision

    def update_unit(
        self, ranges: Sequence[tuple[float, float]], missing: int = 0
    ) -> Decision | None:
        """Add the next prompt by the worst and the best value that it can have.

        They are equal if it has an answer. A test of groups adds all prompts of a group instead.
        """
        ((worst, best),) = ranges
        if missing:
            return self.update_missing(worst, best)
        return self.update((worst,)) if worst == best else self.update_unknown(worst, best)

    @property
    def log_wealth_pass(self) -> float:
        """Natural logarithm of the wealth of the bet for PASS."""
        return self._pass.log

    @property
    def log_wealth_fail(self) -> float:
        """Natural logarithm of the wealth of the bet for FAIL."""
        return self._fail.log

    @property
    def log_wealth_answered(self) -> float:
        """Natural logarithm of the wealth of the bet against "too many answers are missing"."""
        return log_wealth(self.n, self._most_missing, self.looked_at, self.missing)

    def _check_range(self, worst: float, best: float) -> None:
        if not self._lo <= worst <= best <= self._hi:
            raise ServeEvalError(
                f"{worst}..{best} is not a range for a missing value",
                hint=f"give the worst and the best value within {self._lo:g}..{self._hi:g}",
            )

    def _count(self, prompts: int) -> None:
        """Count the next prompts. Raises ServeEvalError for more than were planned."""
        if self.looked_at + prompts > self.n:
            raise ServeEvalError(
                f"more values than the {self.n} planned samples", hint="give each prompt once"
            )
        self.looked_at += prompts

    def _take(self, worst: float, best: float, prompts: int = 1) -> None:
        """Bet on a value that is between `worst` and `best`, of one or several prompts."""
        self._count(prompts)
        passes = self._pass.bet((worst - self._lo) / self._width) >= self._needed
        fails = self._fail.bet((self._hi - best) / self._width) >= self._needed
        if (
            (passes or fails)
            and self.log_wealth_answered >= -math.log(self.eps)
            and not self.held()
        ):
            self.decision = Decision.PASS if passes else Decision.FAIL


class EarlyClassic(EarlyVerdict):
    """Decide before the end; differ from the full run's verdict with probability at most `eps`.

    The full verdict is INCONCLUSIVE if more than `max_missing` of the `n` answers are missing. Else
    it is FAIL if the mean of all values is below `threshold` even with each missing one at its
    best, PASS if the mean is not below it with each at its worst, INCONCLUSIVE otherwise. With
    stored pairs the values are differences (`for_pairs`). If only the reference's mean is known
    they are the candidate's scores (`mean_only`), which needs more samples.
    """

    def __init__(
        self,
        n: int,
        threshold: float,
        *,
        lo: float,
        hi: float,
        eps: float = 0.01,
        max_missing: float = 0.02,
    ) -> None:
        check_count("the number of planned samples", n, 1)
        check_level("eps", eps)
        if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi and math.isfinite(threshold)):
            raise ServeEvalError(
                f"an early stop needs a metric with a finite range and threshold, not {lo}..{hi}"
                f" and {threshold}",
                hint="run metrics without a range, such as perplexity, to the end",
            )
        # Both bets are played on a scale of width 1, so that one rounding limit fits all metrics.
        super().__init__(
            n,
            lo=lo,
            hi=hi,
            to_pass=Wealth((threshold - lo) / (hi - lo), n, 0.0, 1.0),
            to_fail=Wealth((hi - threshold) / (hi - lo), n, 0.0, 1.0),
            needed=2.0 / eps,
            eps=eps,
            max_missing=max_missing,
        )

    @classmethod
    def for_pairs(
        cls,
        n: int,
        margin: float,
        *,
        eps: float = 0.01,
        span: float = 1.0,
        max_missing: float = 0.02,
    ) -> EarlyClassic:
        """Create one for differences candidate - reference; negative is worse.

        The metric's range has the width `span`. The full verdict is FAIL if their mean is below
        -`margin`.
        """
        return cls(n, -margin, lo=-span, hi=span, eps=eps, max_missing=max_missing)

    @classmethod
    def mean_only(
        cls,
        n: int,
        threshold: float,
        *,
        lo: float = 0.0,
        hi: float = 1.0,
        eps: float = 0.01,
        max_missing: float = 0.02,
    ) -> EarlyClassic:
        """Create one for the candidate's scores, with only the threshold known.

        If lower is better, negate all of them.
        """
        return cls(n, threshold, lo=lo, hi=hi, eps=eps, max_missing=max_missing)


ON_NONE = 0.8
"""Weight of j = 0, the usual case, for which a prefix without a missing answer is the strongest
evidence. The other j share the rest, so that a missing answer does not end the bet."""


def most_missing(planned: int, share: float) -> int:
    """Return the largest number of missing answers whose share of `planned` is at most `share`."""
    most = min(planned, max(0, round(share * planned)))
    while most > 0 and most / planned > share:
        most -= 1
    return most


def log_wealth(planned: int, most: int, looked_at: int, missing: int) -> float:
    """Return ln of the evidence that at most `most` of `planned` answers will be missing.

    `missing` of the first `looked_at` of a random order are missing. The evidence is infinite as
    soon as more than `most` cannot be missing any longer, and minus infinity as soon as more are.
    """
    too_many = most + 1
    if missing >= too_many:
        return -math.inf
    if looked_at - missing > planned - too_many:
        return math.inf
    weights = [ON_NONE, *[(1.0 - ON_NONE) / most] * most] if most else [1.0]
    under_null = _log_ways(planned, too_many, looked_at, missing)
    logs = [
        math.log(weights[j]) + _log_ways(planned, j, looked_at, missing) - under_null
        for j in range(missing, too_many)
    ]
    top = max(logs)
    return top + math.log(math.fsum(math.exp(one - top) for one in logs))


def _log_ways(planned: int, all_missing: int, looked_at: int, missing: int) -> float:
    """Return ln of [j]_m [n - j]_(k - m).

    These are the ways to fill the prefix if j = `all_missing` of the whole are missing.
    """
    answered = planned - all_missing
    return _log_falling(all_missing, missing) + _log_falling(answered, looked_at - missing)


def _log_falling(a: int, b: int) -> float:
    """Return ln of a (a - 1) ... (a - b + 1)."""
    return math.lgamma(a + 1) - math.lgamma(a - b + 1)
