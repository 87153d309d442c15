"""Stop a paired comparison with repeats early, in rounds that ask every prompt once.

All bets are on differences candidate - reference, and each is against "the mean difference is
-margin or less" (its success: PASS) or "-margin or more" (FAIL). They share alpha.

**The first round** is a run without repeats: prompts count as independent draws, and the test looks
after each of them. The value is the answer minus the mean of all answers of the reference. Half of
alpha is for it.

**PASS in later rounds.** With K answers of the reference and k of the candidate to each question, L
= min(K, k) independent pairs of answers tell the drop *on these questions* (`stats.pairs`). So the
k rounds are joined to L blocks; the value of a prompt in a block is the mean of its answers in the
block minus that of K / L answers of the reference. No two values share an answer. Given the earlier
blocks, the values of a block are independent with the means d_i of the prompts, about which nothing
is assumed. A bet that keeps its stake g for a block multiplies the wealth by prod (1 + g (x_i -
null)), whose mean is prod (1 + g (d_i - null)) <= (1 + g (mean d - null))^n, since a product is at
most the power of the mean of its factors. So if the mean drop on these questions is the margin or
more, the wealth at the ends of blocks is a supermartingale and reaches 2 / alpha with probability
at most alpha / 2 (Ville 1939). Within a block it is not looked at. A third of the wealth is bet at
fixed stakes, a third at one for the variance of the values: in the first block that of the
reference's own answers, later the one observed in earlier blocks. The last third bets, from the
second block on, on what a prompt does beyond what it did before (`ExpectedWealth`).

**FAIL in later rounds** needs more than a drop on these questions, as the final test does: a build
of equal accuracy may lose much on few prompts. After 2, 4, 8, ... rounds each prompt's mean over
all of them is one draw, and a fresh bet on the n means has an equal part of the other half of
alpha. With L = 1 all values share the reference's only answer, and PASS needs such a bet too. Two
rounds have the looks of the first one only, with all of alpha.

**Missing answers.** `AnsweredRounds` shows that few will be missing, whatever prompts they belong
to. Of N answers, let F be the least number of missing ones that is too many. The first t answers of
all rounds hold a share of these. A round asks a simple random sample of prompts, each of which
shows a hypergeometric number of its missing answers: with j draws or with j + 1. The generating
functions of the two interlace, so that of the sum has real roots only (Grace, Walsh and Szegő; see
Borcea, Brändén and Liggett 2009, "Negative dependence and the geometry of polynomials"): it is a
sum of at most F independent trials with the mean F t / N, and shows m or fewer with the probability
of a binomial number of F trials at t / N at most (Hoeffding 1956, for m <= F t / N - 1). Each m has
a share of eps, and one test at the first t at which that probability is small enough.

It assumes that the repeats of a prompt are alike: that it does not matter which are asked first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serve_eval.stats.classic import Decision
from serve_eval.stats.early_paired import LARGEST_STAKE, EarlyPaired, MarginWealth
from serve_eval.stats.early_stop import Wealth

ON_FIRST_ROUND = 0.5
"""Share of alpha for the first of several rounds."""
ON_NONE_MISSING = 0.8
"""Share of eps for a run without a missing answer, by far the usual one. Of the rest, each further
number of missing answers has half of what is left."""
NO_DIFFERENCE = 0.5
"""The value, on a scale of 0..1, of a prompt that is answered as the reference answers it."""
LEAST_VARIANCE = 0.0025
"""Least variance on a scale of 0..1 that the first stake assumes: one answer of a hundred flips."""


def split_evenly(count: int, parts: int) -> list[int]:
    """Return for each of `count` places the part, 0 to `parts` - 1, that it belongs to."""
    return [place * parts // count for place in range(count)]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of rounds that are compared with different answers of the reference.

    `ends` are the last rounds of the blocks, counted from 1. `offsets` hold for each block and
    prompt, in the order of asking, the mean of all answers of the reference minus that of the
    block's. `variance` is that of a value in the first block, as the reference's answers vary.
    """

    ends: Sequence[int]
    offsets: Sequence[Sequence[float]]
    variance: float


def make_blocks(runs: Sequence[Sequence[float]], rounds: int, variance: float) -> Blocks | None:
    """Return the blocks of `rounds` rounds for the scores of the reference's runs.

    `runs` have a row per run and a column per prompt in the order of asking; `variance` is that of
    a single answer. None for a single run, which all rounds share. Blocks grow by the same factor,
    so that a run far from the margin ends in the first ones.
    """
    pairs = min(len(runs), rounds)
    if pairs < 2:
        return None
    parts = split_evenly(len(runs), pairs)
    means = [math.fsum(column) / len(runs) for column in zip(*runs, strict=True)]
    offsets = []
    for place in range(pairs):
        block = [run for run, part in zip(runs, parts, strict=True) if part == place]
        own = (math.fsum(column) / len(block) for column in zip(*block, strict=True))
        offsets.append([mean - one for mean, one in zip(means, own, strict=True)])
    ends = [0]
    for place in range(1, pairs + 1):
        grown = round(rounds ** (place / pairs))
        ends.append(min(max(grown, ends[-1] + 1), rounds - pairs + place))
    return Blocks(ends[1:], offsets, variance * (1.0 / ends[1] + pairs / len(runs)))


class EarlyRepeats(EarlyPaired):
    """Decide a paired comparison of `prompts` prompts early, each asked in each of `rounds` rounds.

    Rounds have the same order of prompts. A value is the answer minus the mean of the reference's.
    `blocks` tell the answers of the reference that each block of rounds is compared with (None: all
    rounds share them). The rest is that of `EarlyPaired`.
    """

    def __init__(
        self,
        prompts: int,
        rounds: int,
        margin: float,
        *,
        alpha: float,
        blocks: Blocks | None = None,
        span: float = 1.0,
        eps: float = 0.01,
        max_missing: float = 0.02,
    ) -> None:
        n = prompts * rounds
        super().__init__(n, margin, alpha=alpha, span=span, eps=eps, max_missing=max_missing)
        self._shift, self._prompts, self._blocks = margin / (2.0 * span), prompts, blocks
        looks = max(1, rounds - 1).bit_length() - 1  # after 2, 4, 8, ... rounds, but not the last
        self._by_block = None
        if blocks is not None and looks:
            variance = blocks.variance / (4.0 * span * span)
            self._by_block = BlockWealth(0.5 - self._shift, self._shift, variance)
        self._answered = AnsweredRounds(n, self._most_missing)
        self._worst, self._best, self._block = ([0.0] * prompts for _ in range(3))
        self._shown: Decision | None = None
        self._first = 1.0 / (alpha * (ON_FIRST_ROUND if looks else 1.0))
        self._later = 1.0 / (alpha * (1.0 - ON_FIRST_ROUND))
        self._looks = looks

    def update_unit(
        self, ranges: Sequence[tuple[float, float]], missing: int = 0
    ) -> Decision | None:
        """Add the answer to the next prompt of the round by the worst and best value it can have.

        They are equal if the answer came. `missing` is 1 if it did not.
        """
        ((worst, best),) = ranges
        self._check_range(worst, best)
        if self.decision is not None:
            return self.decision
        place, first = self.looked_at % self._prompts, self.looked_at < self._prompts
        self._count(1)
        self.missing += missing
        self._answered.add(missing)
        worst, best = ((one - self._lo) / self._width for one in (worst, best))
        for sums, value in ((self._worst, worst), (self._best, best), (self._block, worst)):
            sums[place] += value
        self._pass.bet(worst)
        if first:
            self._fail.bet(1.0 - best)
        done, rest = divmod(self.looked_at, self._prompts)
        shown = self._look_in_first() if first else None
        at_end = None if rest else self._look_at_end(done)
        self._shown = self._shown or shown or at_end
        if self._shown is not None and self._stands(at_end) and self._few_missing():
            self.decision = None if self.held() else self._shown
        return self.decision

    def _look_in_first(self) -> Decision | None:
        """Return what the bets of the first round show."""
        least = math.log(self._first)
        if self._pass.log >= least:
            return Decision.PASS
        return Decision.FAIL if self._fail.log >= least else None

    def _stands(self, at_end: Decision | None) -> bool:
        """Return False for a PASS of an earlier look that the answers since then speak against.

        No promise needs it. A server that turns worse is stopped later.
        """
        earlier = self._shown is Decision.PASS and at_end is not Decision.PASS
        return not earlier or self._pass.log >= math.log(self._first)

    def _look_at_end(self, done: int) -> Decision | None:
        """Return what the bets at the end of round `done` show."""
        if not self._looks:
            return None
        if self._blocks is not None and self._by_block is not None:
            passes = done in self._blocks.ends and self._end_block(self._by_block, done)
        else:
            passes = self._bet_on_means(self._worst, done, -self._shift)
        if passes:
            return Decision.PASS
        fails = self._bet_on_means([done - one for one in self._best], done, self._shift)
        return Decision.FAIL if fails else None

    def _end_block(self, bet: BlockWealth, done: int) -> bool:
        """Bet on each prompt's answers of the block that ends. Return True if the margin is out."""
        assert self._blocks is not None
        number = self._blocks.ends.index(done)
        size = done - ([0, *self._blocks.ends])[number]
        moved = self._blocks.offsets[number]
        for place, total in enumerate(self._block):
            bet.bet(min(1.0, max(0.0, total / size + moved[place] / self._width)))
        bet.end_block()
        self._block = [0.0] * self._prompts
        return bet.log >= math.log(self._later)

    def _bet_on_means(self, sums: Sequence[float], done: int, shift: float) -> bool:
        """Return True if a fresh bet on each prompt's mean over the rounds excludes the null.

        There is one after 2, 4, 8, ... rounds.
        """
        if done == 1 or done & (done - 1):
            return False
        bet = MarginWealth(0.5 + shift, self._shift)
        wealth = [bet.bet(min(1.0, max(0.0, one / done))) for one in sums][-1]
        return wealth >= self._later * self._looks

    def _few_missing(self) -> bool:
        return self.log_wealth_answered >= -math.log(self.eps)

    @property
    def log_wealth_pass(self) -> float:
        """Natural logarithm of the largest wealth for PASS: of the first round or of all blocks."""
        by_block = -math.inf if self._by_block is None else self._by_block.log
        return max(self._pass.log, by_block)

    @property
    def log_wealth_answered(self) -> float:
        """Natural logarithm of the evidence that few answers will be missing."""
        return self._answered.log


class ExpectedWealth:
    """The wealth of a bet on what each prompt does in a block beyond what it did in earlier ones.

    A prompt that is lost for good costs a bet on its value as much in each block as chance does. So
    numbers that earlier blocks tell are subtracted from the values of a block: the means of the
    prompts so far, where these are below no difference, moved so that their mean is 0. The mean of
    the values stays as it is, and so does the promise. The first block has no bet.
    """

    __slots__ = (
        "_block",
        "_blocks",
        "_gap",
        "_moved",
        "_null",
        "_seen",
        "_squares",
        "_stake",
        "_sums",
        "_variance",
        "_wealth",
    )

    def __init__(self, null: float, gap: float, variance: float) -> None:
        self._null, self._gap, self._variance, self._wealth = null, gap, variance, 1.0
        self._squares, self._seen, self._blocks, self._stake = 0.0, 0, 0, 0.0
        self._block: list[float] = []
        self._sums: list[float] = []
        self._moved: list[float] = []

    def bet(self, value: float) -> float:
        """Bet on the value of the next prompt and return the wealth after it."""
        if self._moved:
            beyond = value - self._moved[len(self._block)]
            self._wealth *= 1.0 + self._stake * (beyond - self._null)
        self._block.append(value)
        return self._wealth

    def end_block(self) -> None:
        """Set the numbers and the stake of the next block by the values so far."""
        block, self._block = self._block, []
        if self._moved:
            beyond = [value - one for value, one in zip(block, self._moved, strict=True)]
            mean = math.fsum(beyond) / len(beyond)
            self._squares += math.fsum((one - mean) ** 2 for one in beyond)
            self._seen += len(beyond)
        before = self._sums or [0.0] * len(block)
        self._sums = [one + value for one, value in zip(before, block, strict=True)]
        self._blocks += 1
        usual = [min(NO_DIFFERENCE, one / self._blocks) for one in self._sums]
        mean = math.fsum(usual) / len(usual)
        self._moved = [one - mean for one in usual]
        hoped = math.fsum(self._sums) / (self._blocks * len(block)) - self._null
        gap = min(self._gap, max(self._gap / 4.0, hoped))
        used = self._squares / self._seen if self._seen else 2.0 * self._variance
        most = LARGEST_STAKE / (self._null + max(self._moved))
        self._stake = min(gap / (max(used, LEAST_VARIANCE) + gap * gap), most)


class BlockWealth:
    """The wealth of a bet against "the mean of the prompts is at most `null`", block by block.

    Values are in 0..1, in the same order of prompts in each block. A third is bet as
    `ExpectedWealth`, the rest as in `MarginWealth`, with a stake that changes only between blocks.
    The first stake is for `variance`.
    """

    __slots__ = (
        "_adaptive",
        "_expected",
        "_fixed",
        "_gap",
        "_null",
        "_parts",
        "_seen",
        "_squares",
        "_stake",
    )

    def __init__(self, null: float, gap: float, variance: float) -> None:
        self._fixed, self._parts = Wealth(null, None, 0.0, 1.0), (1.0, 1.0, 1.0)
        self._null, self._gap, self._adaptive = null, gap, 1.0
        inside = 0.0 < null < 1.0
        self._expected = ExpectedWealth(null, gap, variance) if inside else None
        self._squares, self._seen = 0.0, 0
        self._set_stake(variance)

    def _set_stake(self, variance: float) -> None:
        null, gap, used = self._null, self._gap, max(variance, LEAST_VARIANCE)
        inside = self._expected is not None
        self._stake = min(gap / (used + gap * gap), LARGEST_STAKE / null) if inside else 0.0

    def bet(self, value: float) -> float:
        """Bet on one value and return the wealth after it."""
        self._adaptive *= 1.0 + self._stake * (value - self._null)
        self._squares += (value - NO_DIFFERENCE) ** 2
        self._seen += 1
        expected = 1.0 if self._expected is None else self._expected.bet(value)
        self._parts = self._fixed.bet(value), self._adaptive, expected
        return sum(self._parts) / len(self._parts)

    def end_block(self) -> None:
        """Set the stakes of the next block by the values so far."""
        self._set_stake(self._squares / self._seen)
        if self._expected is not None:
            self._expected.end_block()

    @property
    def log(self) -> float:
        """Natural logarithm of the wealth."""
        mean = sum(self._parts) / len(self._parts)
        return math.log(mean) if mean > 0.0 else -math.inf


class AnsweredRounds:
    """The evidence that at most `most` of `n` answers in rounds will be missing."""

    def __init__(self, n: int, most: int) -> None:
        self._n, self._most = n, most
        self._missing = self._seen = 0

    def add(self, missing: int) -> None:
        """Add the next answer; `missing` is 1 if there is none."""
        self._seen += 1
        self._missing += missing

    @property
    def log(self) -> float:
        """Natural logarithm of the evidence; infinite if too many cannot be missing any longer."""
        seen, missing, too_many = self._seen, self._missing, self._most + 1
        if missing >= too_many:
            return -math.inf
        if missing + self._n - seen < too_many:
            return math.inf
        share = seen / self._n
        weight = (
            math.log(1.0 - ON_NONE_MISSING) - missing * math.log(2.0)
            if missing
            else math.log(ON_NONE_MISSING)
        )
        if missing > too_many * share - 1.0:
            return weight
        terms = [
            math.lgamma(too_many + 1)
            - math.lgamma(j + 1)
            - math.lgamma(too_many - j + 1)
            + (j * math.log(share) if j else 0.0)
            + (too_many - j) * math.log1p(-share)
            for j in range(missing + 1)
        ]
        top = max(terms)
        return weight - top - math.log(math.fsum(math.exp(one - top) for one in terms))
