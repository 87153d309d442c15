"""Stop a paired comparison with repeats early, round by round.

With K answers of the reference and k of the candidate to each question, L = min(K, k) independent
pairs of answers tell the drop *on these questions* (`stats.pairs`). So L rounds ask all prompts,
each once: the value of a prompt in a round is the mean of its next k / L answers minus the mean of
K / L answers of the reference. No two values share an answer. Nothing is assumed about the chances
of single prompts.

**PASS.** Given the earlier rounds, the values of a round are independent with the means d_i of the
prompts. A bet that keeps its stake g for a round multiplies the wealth by prod (1 + g (x_i -
null)), whose mean is prod (1 + g (d_i - null)) <= (1 + g (mean d - null))^n, since a product is at
most the power of the mean of its factors. So if the mean drop on these questions is the margin or
more, the wealth at the ends of rounds is a supermartingale and reaches 1 / alpha with probability
at most alpha (Ville 1939). Within the first round the test looks after each prompt, and takes
prompts as independent draws, as a run without repeats does. Within later rounds it does not look:
their prompts are known, and are no new draws.

Half of the wealth is bet at fixed stakes, half at a stake for the variance of the values: in the
first round that of the reference's own answers, later the one observed in earlier rounds.

**FAIL** needs more than a drop on these questions, as the final test does: a build of equal
accuracy may lose much on few prompts. In the first round the bet is that of a run without repeats,
on prompts as draws, with half of alpha. After 2, 4, 8, ... rounds each prompt's mean over all of
them is one draw, and a fresh bet on the n means has an equal part of the other half.

**Missing answers.** `AnsweredRounds` shows that few will be missing, whatever prompts they belong
to. Of N answers, let F be the least number of missing ones that is too many. Two bets share eps.

* None is missing so far. A prompt with u missing answers among its k, of which the first t / n were
  asked, shows none with probability (1 - t / N)^u at most, and which prompts of a round were asked
  is negatively associated. So the first t answers show none with probability (1 - t / N)^F at most,
  wherever the missing ones are. At the first t at which that is eps or less, one test is made.
* At the ends of rounds: under the hypothesis the share of missing answers in the next round is
  known on average from those so far (`Wealth` without replacement, here round by round).

It assumes that the repeats of a prompt are alike: that it does not matter which are asked first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from serve_eval.stats.betting import GRID
from serve_eval.stats.classic import Decision
from serve_eval.stats.early_paired import LARGEST_STAKE, EarlyPaired
from serve_eval.stats.early_stop import ROUNDING, Wealth

ON_FIRST_ROUND = 0.5
"""Share of alpha for a FAIL in the first of several rounds."""
ON_NONE_MISSING = 0.8
"""Share of eps for a run without a missing answer, by far the usual one."""
LEAST_VARIANCE = 0.0025
"""Least variance on a scale of 0..1 that the first stake assumes: one answer of a hundred flips."""


def split_evenly(count: int, parts: int) -> list[int]:
    """Return for each of `count` places the part, 0 to `parts` - 1, that it belongs to."""
    return [place * parts // count for place in range(count)]


class EarlyRepeats(EarlyPaired):
    """Decide a paired comparison of `prompts` prompts early, in rounds of all of them.

    `sizes` has the number of answers to each prompt by round. A unit is the answers to a prompt in
    a round; units come round by round, always in the same order of prompts. `variance` is that of
    a value which the reference leads to expect; None: all rounds have the same answers of the
    reference. The rest is that of `EarlyPaired`.
    """

    def __init__(
        self,
        prompts: int,
        sizes: Sequence[int],
        margin: float,
        *,
        alpha: float,
        variance: float | None,
        span: float = 1.0,
        eps: float = 0.01,
        max_missing: float = 0.02,
    ) -> None:
        n = prompts * sum(sizes)
        super().__init__(n, margin, alpha=alpha, span=span, eps=eps, max_missing=max_missing)
        self._shift, self._prompts, self._unit = margin / (2.0 * span), prompts, 0
        self._by_round = None
        if variance is not None:
            scaled = variance / (4.0 * span * span)
            self._by_round = self._pass = RoundWealth(0.5 - self._shift, self._shift, scaled)
        self._worst, self._best = [0.0] * prompts, [0.0] * prompts
        self._answered = AnsweredRounds(prompts, sizes, self._most_missing)
        looks = len(sizes).bit_length() - 1
        self._first = 1.0 / (alpha * (ON_FIRST_ROUND if looks else 1.0))
        self._later = looks / (alpha * (1.0 - ON_FIRST_ROUND))
        self._shown: Decision | None = None

    def update_unit(
        self, ranges: Sequence[tuple[float, float]], missing: int = 0
    ) -> Decision | None:
        """Add the answers to a prompt in a round by the worst and best value that each can have.

        They are equal for an answer that came. `missing` of the answers did not.
        """
        for worst, best in ranges:
            self._check_range(worst, best)
        if self.decision is not None:
            return self.decision
        self._count(len(ranges))
        self.missing += missing
        place, first = self._unit % self._prompts, self._unit < self._prompts
        self._unit += 1
        worst, best = (math.fsum(one) / len(ranges) for one in zip(*ranges, strict=True))
        worst, best = ((one - self._lo) / self._width for one in (worst, best))
        self._worst[place] += worst
        self._best[place] += best
        self._answered.add(len(ranges), missing)
        if first or self._by_round is not None:
            self._pass.bet(worst)
        if first:
            self._fail.bet(1.0 - best)
        done, rest = divmod(self._unit, self._prompts)
        if not rest:
            self._answered.end_round()
            if self._by_round is not None:
                self._by_round.end_round()
        self._shown = self._shown or self._look(done, first=first, ends=not rest)
        if self._shown is not None and self._still_shown() and self._few_missing():
            self.decision = None if self.held() else self._shown
        return self.decision

    def _look(self, done: int, *, first: bool, ends: bool) -> Decision | None:
        """Return what a bet shows at a place where it may be looked at."""
        least = math.log(self._first)
        by_means = ends and done > 1 and done & (done - 1) == 0
        if self._by_round is not None:
            passes = (first or ends) and self._by_round.log >= math.log(self._needed)
        else:
            passes = first and self._pass.log >= least
            passes = passes or (by_means and self._bet_on(self._worst, done, -self._shift))
        if passes:
            return Decision.PASS
        fails = first and self._fail.log >= least
        if fails or (
            by_means and self._bet_on([done - one for one in self._best], done, self._shift)
        ):
            return Decision.FAIL
        return None

    def _bet_on(self, sums: Sequence[float], rounds: int, shift: float) -> bool:
        """Return True if a fresh bet on each prompt's mean over the rounds excludes the null."""
        bet = Wealth(0.5 + shift, None, 0.0, 1.0)
        wealth = [bet.bet(min(1.0, max(0.0, one / rounds))) for one in sums][-1]
        return wealth >= self._later

    def _still_shown(self) -> bool:
        """Return False for a PASS whose wealth has fallen since, as when a server turns worse."""
        again = self._shown is Decision.PASS and self._by_round is not None
        return not again or self._pass.log >= math.log(self._needed)

    def _few_missing(self) -> bool:
        return self.log_wealth_answered >= -math.log(self.eps)

    @property
    def log_wealth_answered(self) -> float:
        """Natural logarithm of the evidence that few answers will be missing."""
        return self._answered.log


class RoundWealth:
    """The wealth of a bet against "the mean of the prompts is at most `null`", round by round.

    Values are in 0..1. Half is bet as in `MarginWealth`, with a stake that changes only between
    rounds. The first stake is for `variance`.
    """

    __slots__ = ("_adaptive", "_fixed", "_gap", "_null", "_seen", "_squares", "_stake")

    def __init__(self, null: float, gap: float, variance: float) -> None:
        self._fixed = Wealth(null, None, 0.0, 1.0)
        self._null, self._gap, self._adaptive = null, gap, 1.0
        self._squares, self._seen = 0.0, 0
        self._set_stake(variance)

    def _set_stake(self, variance: float) -> None:
        null, gap, used = self._null, self._gap, max(variance, LEAST_VARIANCE)
        inside = 0.0 < null < 1.0
        self._stake = min(gap / (used + gap * gap), LARGEST_STAKE / null) if inside else 0.0

    def bet(self, value: float) -> float:
        """Bet on one value and return the wealth after it."""
        self._adaptive *= 1.0 + self._stake * (value - self._null)
        self._squares += (value - 0.5) ** 2
        self._seen += 1
        return 0.5 * (self._fixed.bet(value) + self._adaptive)

    def end_round(self) -> None:
        """Set the stake of the next round by the values so far."""
        self._set_stake(self._squares / self._seen)

    @property
    def log(self) -> float:
        """Natural logarithm of the wealth."""
        return add_logs(self._fixed.log, self._adaptive)


def add_logs(fixed: float, adaptive: float) -> float:
    """Return ln of half the sum of exp(`fixed`) and `adaptive`."""
    other = math.log(adaptive) if adaptive > 0.0 else -math.inf
    top = max(fixed, other)
    if not math.isfinite(top):
        return top
    return top + math.log(0.5 * (math.exp(fixed - top) + math.exp(other - top)))


class AnsweredRounds:
    """The evidence that at most `most` answers of all rounds will be missing."""

    def __init__(self, prompts: int, sizes: Sequence[int], most: int) -> None:
        self._prompts, self._sizes, self._most = prompts, sizes, most
        self._n = self._left = prompts * sum(sizes)
        self._missing = self._seen = self._round = 0
        self._values: list[float] = []
        self._logs = [0.0] * len(GRID)

    def add(self, size: int, missing: int) -> None:
        """Add the next prompt with `size` answers, of which `missing` are missing."""
        self._seen += size
        self._missing += missing
        self._values.append(1.0 - missing / size)

    def end_round(self) -> None:
        """Bet on the values of the round that ends."""
        before = self._missing - round(sum(1.0 - one for one in self._values) * self._size)
        null = 1.0 - (self._most + 1 - before) / self._left
        if ROUNDING < null < 1.0:
            for place, g in enumerate(GRID):
                steps = (1.0 + g * (value / null - 1.0) for value in self._values)
                self._logs[place] += math.fsum(map(math.log, steps))
        self._left -= self._prompts * self._size
        self._round, self._values = self._round + 1, []

    @property
    def _size(self) -> int:
        return self._sizes[self._round]

    @property
    def log(self) -> float:
        """Natural logarithm of the evidence; infinite if too many cannot be missing any longer."""
        if self._missing > self._most:
            return -math.inf
        if self._missing + self._n - self._seen <= self._most:
            return math.inf
        top = max(self._logs)
        mean = top + math.log(math.fsum(math.exp(one - top) for one in self._logs) / len(GRID))
        by_round = math.log(1.0 - ON_NONE_MISSING) + mean
        if self._missing:
            return by_round
        none = -(self._most + 1) * math.log1p(-self._seen / self._n)
        return max(math.log(ON_NONE_MISSING) + none, by_round)
