"""Stop a paired comparison once a drop of the margin is decided, also for prompts in groups.

Two bets are placed on the differences candidate - reference. One is against "the true mean
difference is -margin or less"; its success excludes the margin. The other is against "it is -margin
or more"; its success shows a drop beyond the margin. As in the final test, prompts count as
independent draws of a large population. A true hypothesis's wealth reaches 1 / alpha with
probability at most alpha, for any number of looks (Ville 1939).

A run that may stop early can err in its looks or at its end. The looks use
`multiplicity.SPENT_ON_LOOKS` of its alpha, the final bounds and p use the rest, so that both
together stay within alpha.

Bets on single prompts take one misread passage for as much evidence as it has questions. Here a
value is a whole group: the sum of its differences candidate - reference, over the size of the
largest group. Groups count as independent draws of a large population, as in the final test;
nothing is assumed about the answers within one, which may all depend on a single event. The
hypothesis "the mean difference of the prompts is -margin or less" is "the sum of a group's
differences plus margin times its size is 0 or less on average", which holds for groups of any
sizes. No group of the population is assumed to be larger than the largest of the run.

Source of the bets: `early_paired`. The bet on missing answers is by groups as well
(`answered_groups`), since all answers of a group may be missing together.

The bet of `answered` on single prompts does not hold here: all answers of a group may be missing
together, such as those to a passage that is too long for the server. Two bets share the wealth:

* `answered` on the groups that lack an answer. If more than `most` answers are missing, at least as
  many groups lack one as the largest groups need to hold them. It is the quicker one while nothing
  is missing.
* On the share of each group that has answers, without replacement (Waudby-Smith and Ramdas, arXiv
  2010.09686). It survives answers that are missing here and there.

Each reaches 1 / eps with probability at most eps if too many answers are missing, and so does their
average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from serve_eval.errors import ServeEvalError
from serve_eval.stats.classic import Decision
from serve_eval.stats.early_stop import EarlyVerdict, Wealth, log_wealth
from serve_eval.stats.inputs import check_count, check_level, check_margin

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


GROUP_PRIOR_WEIGHT = 5
"""Groups for which the variance counts that is assumed before the first one. With 20, as for single
prompts, up to six in a hundred fewer sound runs of 130 to 260 groups stop."""


class EarlyGroups(EarlyPaired):
    """Decide a paired comparison early, group by group.

    `sizes` are those of all planned groups, in any order. The rest is that of `EarlyPaired`, whose
    promises hold for any dependence within groups. A group counts once all its prompts are known.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        margin: float,
        *,
        alpha: float,
        span: float = 1.0,
        eps: float = 0.01,
        max_missing: float = 0.02,
    ) -> None:
        n, self._largest = sum(sizes), max(sizes, default=1)
        super().__init__(
            n,
            margin,
            alpha=alpha,
            span=span,
            eps=eps,
            max_missing=max_missing,
            hoped=n / (len(sizes) * self._largest) if sizes else 1.0,
            prior_weight=GROUP_PRIOR_WEIGHT,
        )
        self.groups: Final = len(sizes)
        self._answered = AnsweredGroups(sizes, self._most_missing)

    def update_unit(
        self, ranges: Sequence[tuple[float, float]], missing: int = 0
    ) -> Decision | None:
        """Add a group by the worst and the best value of each prompt, and return the decision.

        They are equal for a prompt with an answer. `missing` of the prompts have none.
        """
        for worst, best in ranges:
            self._check_range(worst, best)
        if self.decision is not None:
            return self.decision
        self.missing += missing
        self._answered.add(len(ranges), missing)
        # sum + margin size, over the largest size, and moved so that its hypothesis is -margin.
        shift = min(self.margin, self._hi) * (1.0 - len(ranges) / self._largest)
        worst, best = (math.fsum(one) / self._largest - shift for one in zip(*ranges, strict=True))
        self._take(worst, best, len(ranges))
        return self.decision

    @property
    def log_wealth_answered(self) -> float:
        """Natural logarithm of the wealth of the bet against "too many answers are missing"."""
        return self._answered.log


class AnsweredGroups:
    """The evidence that at most `most` answers of groups with these `sizes` will be missing."""

    def __init__(self, sizes: Sequence[int], most: int) -> None:
        self._left, self._most, self._groups = sum(sizes), most, len(sizes)
        self._largest = max(sizes)
        self._missing = self._seen = self._lacking = self._least = 0
        left = most + 1
        for size in sorted(sizes, reverse=True):
            if left > 0:
                left, self._least = left - size, self._least + 1
        null = 1.0 - (most + 1) / (self._largest * self._groups)
        self._by_share = Wealth(null, self._groups, 0.0, 1.0)

    def add(self, size: int, missing: int) -> None:
        """Add the next group of `size` prompts, of which `missing` have no answer."""
        self._seen += 1
        self._left -= size
        self._missing += missing
        self._lacking += missing > 0
        self._by_share.bet(1.0 - missing / self._largest)

    @property
    def log(self) -> float:
        """Natural logarithm of the wealth; infinite if too many cannot be missing any longer."""
        if self._missing > self._most:
            return -math.inf
        if self._missing + self._left <= self._most:
            return math.inf
        one = log_wealth(self._groups, self._least - 1, self._seen, self._lacking)
        other = self._by_share.log
        top = max(one, other)
        if not math.isfinite(top):
            return top
        return top + math.log(0.5 * (math.exp(one - top) + math.exp(other - top)))
