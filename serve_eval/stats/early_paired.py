"""Sequential non-inferiority: stop a paired comparison once a drop of the margin is decided.

Two bets are placed on the differences candidate - reference. One is against "the true mean
difference is -margin or less"; its success excludes the margin. The other is against "it is -margin
or more"; its success shows a drop beyond the margin. As in the final test, prompts count as
independent draws of a large population. A true hypothesis's wealth reaches 1 / alpha with
probability at most alpha, for any number of looks (Ville 1939).

A run that may stop early can err in its looks or at its end. The looks use `SPENT_ON_LOOKS` of its
alpha, the final bounds and p use the rest, so that both together stay within alpha.
"""

from __future__ import annotations

import math
from typing import Final

from serve_eval.errors import ServeEvalError
from serve_eval.stats.early_stop import EarlyVerdict, Wealth
from serve_eval.stats.inputs import check_count, check_level, check_margin

SPENT_ON_LOOKS = 0.5
"""Share of alpha that the looks of a run use."""

PRIOR_VARIANCE, PRIOR_WEIGHT = 0.05, 20
"""Variance on a scale of 0..1 that is assumed before the first value, and the number of values it
counts for. 0.05 is the variance of right/wrong pairs of which a fifth change: more than usual, so
that the first stakes are small."""
LARGEST_STAKE = 0.97
"""Largest share of the wealth that the worst value can cost."""


class MarginWealth:
    """The wealth of a bet against "the mean of independent values in 0..1 is at most `null`".

    Half of it is bet at the fixed stakes of `Wealth`, half at a stake that adapts to the values:
    gap / (v + gap^2) on value - null, where v is the variance observed so far and `gap` the
    distance of the mean that is hoped for. That is the stake of the fastest growth at this mean
    (Kelly 1956; GRAPA in Waudby-Smith and Ramdas, arXiv 2010.09686). For small margins it needs a
    fifth fewer values than the fixed stakes alone. The fixed stakes hedge against another mean.
    """

    __slots__ = ("_adaptive", "_fixed", "_gap", "_null", "_seen", "_squares")

    def __init__(self, null: float, gap: float, prior_weight: int = PRIOR_WEIGHT) -> None:
        self._fixed = Wealth(null, None, 0.0, 1.0)
        self._null, self._gap = null, gap
        self._adaptive = 1.0
        self._squares, self._seen = PRIOR_VARIANCE * prior_weight, prior_weight

    def bet(self, value: float) -> float:
        """Bet on one value and return the wealth after it."""
        if 0.0 < self._null < 1.0:
            variance = self._squares / self._seen
            stake = min(self._gap / (variance + self._gap * self._gap), LARGEST_STAKE / self._null)
            self._adaptive *= 1.0 + stake * (value - self._null)
        self._squares += (value - 0.5) ** 2
        self._seen += 1
        return 0.5 * (self._fixed.bet(value) + self._adaptive)

    @property
    def log(self) -> float:
        """Natural logarithm of the wealth."""
        fixed = self._fixed.log
        adaptive = math.log(self._adaptive) if self._adaptive > 0.0 else -math.inf
        top = max(fixed, adaptive)
        if not math.isfinite(top):
            return top
        return top + math.log(0.5 * (math.exp(fixed - top) + math.exp(adaptive - top)))


class EarlyPaired(EarlyVerdict):
    """Decide a paired comparison early.

    PASS: a drop of `margin` is excluded. FAIL: one is shown. Values are differences candidate -
    reference per prompt, negative if the candidate is worse, of a metric whose range has the width
    `span`; the reference's score is the mean over its runs. Either decision is wrong with
    probability at most `alpha`, the part of alpha that the looks may use. `eps` is the probability
    of deciding a run in which more than `max_missing` answers will be missing. Raises
    ServeEvalError for levels or a margin out of range.
    """

    def __init__(
        self,
        n: int,
        margin: float,
        *,
        alpha: float,
        span: float = 1.0,
        eps: float = 0.01,
        max_missing: float = 0.02,
        hoped: float = 1.0,
        prior_weight: int = PRIOR_WEIGHT,
    ) -> None:
        check_count("the number of planned samples", n, 1)
        check_level("alpha", alpha)
        check_level("eps", eps)
        check_margin(margin)
        if not (math.isfinite(span) and span > 0.0):
            raise ServeEvalError(
                f"an early stop needs a metric with a finite range; this range is {span} wide",
                hint="run metrics without a range, such as perplexity, to the end",
            )
        self.alpha: Final = alpha
        self.margin: Final = margin
        # The margin on a scale of 0..1 where no difference is 1/2.
        shift = margin / (2.0 * span)
        super().__init__(
            n,
            lo=-span,
            hi=span,
            to_pass=MarginWealth(0.5 - shift, hoped * shift, prior_weight),
            to_fail=MarginWealth(0.5 + shift, hoped * shift, prior_weight),
            needed=1.0 / alpha,
            eps=eps,
            max_missing=max_missing,
        )
