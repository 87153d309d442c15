"""Find the answer at which the early stop of the paired rules ends each of many runs, all at once.

The bets are those of `EarlyPaired` and `EarlyRepeats`, as arrays with a row per run. Nothing is
missing, scores are in 0..1, and nothing delays a decision but the proof that few answers are
missing (`DriftHold` is left out). A test compares the decisions with those of the real code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy

from serve_eval.stats.betting import GRID
from serve_eval.stats.early_paired import LARGEST_STAKE, PRIOR_VARIANCE, PRIOR_WEIGHT
from serve_eval.stats.early_repeats import (
    LEAST_VARIANCE,
    ON_FIRST_ROUND,
    AnsweredRounds,
    make_blocks,
)
from serve_eval.stats.early_stop import log_wealth, most_missing
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from tests.stats.calibrate_early_repeats import ALPHA, EPS, MAX_MISSING

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray, IntArray
    from tests.stats.calibrate_early_repeats import Cell

STAKES = numpy.array(GRID)[:, None]


class Bets:
    """The wealths of `MarginWealth`, one per run."""

    def __init__(self, null: float, gap: float, runs: int) -> None:
        self._fixed, self._adaptive = numpy.ones((len(GRID), runs)), numpy.ones(runs)
        self._squares, self._seen = numpy.full(runs, PRIOR_VARIANCE * PRIOR_WEIGHT), PRIOR_WEIGHT
        self._null, self._gap = null, gap

    def bet(self, values: FloatArray) -> FloatArray:
        """Bet on a value of each run and return the wealths after it."""
        moved = values - self._null
        variance = self._squares / self._seen
        stake = self._gap / (variance + self._gap * self._gap)
        self._adaptive *= 1.0 + numpy.minimum(stake, LARGEST_STAKE / self._null) * moved
        self._squares += (values - 0.5) ** 2
        self._seen += 1
        self._fixed *= 1.0 + STAKES * (moved / self._null)
        return (self._fixed.mean(axis=0) + self._adaptive) / 2.0


class BlockBets:
    """The logarithms of the wealths of `BlockWealth`, one per run."""

    def __init__(self, null: float, gap: float, variances: FloatArray) -> None:
        self._null, self._gap, self._variances = null, gap, variances
        self._fixed = numpy.zeros((len(variances), len(GRID)))
        self._adaptive, self._expected, self._squares = numpy.zeros((3, len(variances)))
        self._beyond, self._blocks, self._seen = numpy.zeros(len(variances)), 0, 0
        self._sums: FloatArray | float = 0.0
        self._stake = self._find_stake(variances, gap, null)

    def _find_stake(self, variances: FloatArray, gap: FloatArray, room: FloatArray) -> FloatArray:
        used = numpy.maximum(variances, LEAST_VARIANCE)
        return numpy.minimum(gap / (used + gap * gap), LARGEST_STAKE / room)

    def bet_block(self, values: FloatArray) -> FloatArray:
        """Bet on the values of a block, a row per run; return the logarithms of the wealths."""
        values = numpy.clip(values, 0.0, 1.0)
        if self._blocks:
            self._bet_on_rest(values)
        moved, prompts = values - self._null, values.shape[1]
        for place, stake in enumerate(GRID):
            self._fixed[:, place] += numpy.log1p(stake * moved / self._null).sum(axis=1)
        self._adaptive += numpy.log1p(self._stake[:, None] * moved).sum(axis=1)
        self._squares += ((values - 0.5) ** 2).sum(axis=1)
        self._sums, self._blocks = self._sums + values, self._blocks + 1
        self._seen += prompts
        self._stake = self._find_stake(self._squares / self._seen, self._gap, self._null)
        fixed = numpy.logaddexp.reduce(self._fixed, axis=1) - math.log(len(GRID))
        both = numpy.logaddexp(fixed, self._adaptive)
        return numpy.logaddexp(both, self._expected) - math.log(3.0)

    def _bet_on_rest(self, values: FloatArray) -> None:
        """Bet on the values beyond those of earlier blocks, as `ExpectedWealth`."""
        means = self._sums / self._blocks
        usual = numpy.minimum(0.5, means)
        usual = usual - usual.mean(axis=1, keepdims=True)
        gap = numpy.clip(means.mean(axis=1) - self._null, self._gap / 4.0, self._gap)
        later = self._seen - values.shape[1]
        used = self._beyond / later if later else 2.0 * self._variances
        stake = self._find_stake(used, gap, self._null + usual.max(axis=1))
        beyond = values - usual
        self._expected += numpy.log1p(stake[:, None] * (beyond - self._null)).sum(axis=1)
        self._beyond += ((beyond - beyond.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)


@dataclass(frozen=True, slots=True)
class Promise:
    """The levels of a test, and the share of the answers that may be missing.

    `tests` tasks share the alpha of the looks.
    """

    eps: float = EPS
    max_missing: float = MAX_MISSING
    tests: int = 1

    @property
    def alpha(self) -> float:
        return SPENT_ON_LOOKS * ALPHA / self.tests

    def find_few_missing(self, n: int, rounds: int) -> int:
        """Return the number of answers, none missing, that shows few of `n` will be."""
        most, least = most_missing(n, self.max_missing), -math.log(self.eps)
        if rounds == 1:
            return next(t for t in range(1, n + 1) if log_wealth(n, most, t, 0) >= least)
        answered = AnsweredRounds(n, most)
        for t in range(1, n + 1):
            answered.add(0)
            if answered.log >= least:
                return t
        return n


PROMISE = Promise()


def stop(
    cell: Cell, then: FloatArray, now: FloatArray, promise: Promise = PROMISE
) -> tuple[IntArray, FloatArray]:
    """Return for each run the number of answers looked at, and if the decision is PASS.

    `then` and `now` have the axes run, round and prompt, in the order of asking. A run that is not
    decided is looked at as a whole.
    """
    values = 0.5 + (now - then.mean(axis=1, keepdims=True)) / 2.0
    few = promise.find_few_missing(cell.prompts * cell.repeats, cell.repeats)
    if cell.repeats == 1:
        return _stop_once(values[:, 0], cell.margin / 2.0, 1.0 / promise.alpha, few)
    return _stop_rounds(cell, then, values, promise.alpha, few)


def _stop_once(
    values: FloatArray, shift: float, needed: float, few: int
) -> tuple[IntArray, FloatArray]:
    runs, n = values.shape
    for_pass, for_fail = Bets(0.5 - shift, shift, runs), Bets(0.5 + shift, shift, runs)
    looked_at, passed = numpy.full(runs, n), numpy.zeros(runs, dtype=bool)
    for t in range(n):
        passes = for_pass.bet(values[:, t]) >= needed
        fails = for_fail.bet(1.0 - values[:, t]) >= needed
        if t + 1 >= few:
            ends = (passes | fails) & (looked_at == n)
            looked_at[ends], passed[ends] = t + 1, passes[ends]
            if (looked_at < n).all():
                break
    return looked_at, passed


def _stop_rounds(
    cell: Cell, then: FloatArray, values: FloatArray, alpha: float, few: int
) -> tuple[IntArray, FloatArray]:
    runs, rounds, prompts = values.shape
    shift, n = cell.margin / 2.0, rounds * prompts
    looks = max(1, rounds - 1).bit_length() - 1
    first = 1.0 / (alpha * (ON_FIRST_ROUND if looks else 1.0))
    later = 1.0 / (alpha * (1.0 - ON_FIRST_ROUND))
    noise = then.var(axis=1, ddof=1).mean(axis=1)
    blocks = [make_blocks(one.tolist(), rounds, v) for one, v in zip(then, noise, strict=True)]
    offsets = numpy.array([one.offsets for one in blocks])
    variances = numpy.array([one.variance for one in blocks]) / 4.0
    ends, by_block = [0, *blocks[0].ends], BlockBets(0.5 - shift, shift, variances)
    for_pass, for_fail = Bets(0.5 - shift, shift, runs), Bets(0.5 + shift, shift, runs)
    shown, passed = numpy.zeros(runs, dtype=bool), numpy.zeros(runs, dtype=bool)
    looked_at = numpy.full(runs, n)
    for t in range(n):
        done, place = divmod(t, prompts)
        wealth = for_pass.bet(values[:, done, place])
        at_end = numpy.zeros(runs, dtype=bool)
        new = numpy.zeros(runs, dtype=bool)
        passes = new
        if t < prompts:
            fails = for_fail.bet(1.0 - values[:, 0, place]) >= first
            passes = wealth >= first
            new = passes | fails
        if place == prompts - 1:
            if looks and done + 1 in ends:
                number = ends.index(done + 1) - 1
                block = values[:, ends[number] : done + 1].mean(axis=1) + offsets[:, number] / 2.0
                at_end = by_block.bet_block(block) >= math.log(later)
            fails = _fail_by_means(values, done + 1, shift, later * looks) & ~at_end
            passes = passes | (at_end & ~new)
            new = new | at_end | fails
        fresh = new & ~shown
        passed[fresh], shown = passes[fresh], shown | new
        if t + 1 >= few:
            stands = ~passed | at_end | (wealth >= first)
            ended = shown & stands & (looked_at == n)
            looked_at[ended] = t + 1
            if (looked_at < n).all():
                break
    return looked_at, passed


def _fail_by_means(values: FloatArray, done: int, shift: float, needed: float) -> FloatArray:
    """Return the runs for which a fresh bet on the prompts' means shows a drop, at looks for it."""
    runs = len(values)
    if needed == 0.0 or done == 1 or done & (done - 1):
        return numpy.zeros(runs, dtype=bool)
    bets = Bets(0.5 + shift, shift, runs)
    means = numpy.clip(1.0 - values[:, :done].mean(axis=1), 0.0, 1.0)
    for one in means.T:
        wealth = bets.bet(one)
    return wealth >= needed
