"""Sequential non-inferiority for prompts in groups, which may be answered right or wrong together.

Bets on single prompts take one misread passage for as much evidence as it has questions. Here a
value is a whole group: the sum of its differences candidate - reference, over the size of the
largest group. Groups count as independent draws of a large population, as in the final test;
nothing is assumed about the answers within one, which may all depend on a single event. The
hypothesis "the mean difference of the prompts is -margin or less" is "the sum of a group's
differences plus margin times its size is 0 or less on average", which holds for groups of any
sizes. No group of the population is assumed to be larger than the largest of the run.

Source of the bets: `early_paired`. The bet on missing answers is by groups as well
(`answered_groups`), since all answers of a group may be missing together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from serve_eval.stats.answered_groups import AnsweredGroups
from serve_eval.stats.classic import Decision
from serve_eval.stats.early_paired import EarlyPaired

PRIOR_WEIGHT = 5
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
            prior_weight=PRIOR_WEIGHT,
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
