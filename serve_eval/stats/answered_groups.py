"""Bet that few answers will be missing, on the first groups of a random order of whole groups.

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

from serve_eval.stats.answered import log_wealth
from serve_eval.stats.early_stop import Wealth


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
