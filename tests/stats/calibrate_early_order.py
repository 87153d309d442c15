"""Measure if an order by information per token ends an early stop sooner, and print a table.

Run by hand; seeded, printed, never asserted.

A run asks its answers one after the other, each drawn from those that are left with a chance in
proportion to its share s. With R the sum of the shares left and n the number of answers, the value
x R / (n s) of a draw has the mean sum x / n over the answers left, whatever the shares are. The
bets are on it: against "the mean of the whole run is -margin or less", without replacement
(Waudby-Smith and Ramdas, arXiv 2010.09686, with the weights of Shekhar, Xu, Lipton, Liang and
Ramdas, "Risk-limiting financial audits via weighted sampling without replacement", 2023). A weight
is also the most that a lost answer can cost, so that rare draws make all stakes smaller.

That few answers are missing must hold wherever they are: of F missing ones, a draw finds none with
a chance of 1 - F s / R at most, with the least share s.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy

from serve_eval.stats.betting import GRID
from serve_eval.stats.classic import classic_test
from serve_eval.stats.early_paired import LARGEST_STAKE, PRIOR_VARIANCE, PRIOR_WEIGHT
from serve_eval.stats.early_stop import most_missing
from tests.stats.simulation import altered, endpoints

if TYPE_CHECKING:
    from numpy.random import Generator

    from serve_eval.stats.inputs import FloatArray

ALPHA, EPS, MAX_MISSING = 0.025, 0.008, 0.02
RUNS = 150
LENGTH_SPREAD = 0.7
"""Standard deviation of the logarithm of a length: nine of ten lie within a factor of 10."""
UNSTEADY_LONGER = 1.5
"""Length of answers to prompts of unsure outcome, by that of the others."""
ORDERS = {
    "random": lambda unsteady, length: numpy.ones(len(length)),
    "unsteady 2": lambda unsteady, length: 1.0 + unsteady,
    "unsteady 4": lambda unsteady, length: 1.0 + 3.0 * unsteady,
    "short": lambda unsteady, length: length**-0.5,
    "short, at most 2": lambda unsteady, length: numpy.clip(length**-0.5, 0.7, 1.4),
}
"""Shares by order: by unsteadiness, which is that the reference's runs differ, and by length."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A row: `n` prompts, each asked `repeats` times, and `runs` runs of the reference.

    A share `build` of the prompts has another answer for good, half of them a right one.
    """

    n: int
    repeats: int
    flips: float
    runs: int
    build: float = 0.0

    @property
    def margin(self) -> float:
        """The classic margin, as a share."""
        return -classic_test(self.n, 0.0, 50.0, 0.05, 0.2).threshold / 100


@dataclass(slots=True)
class Stops:
    """Shares of the answers and of the tokens asked until a decision, and of runs decided."""

    answers: float
    tokens: float
    decided: float
    few_missing: float


def draw(random: Generator, shape: Shape) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return for each answer of a run its difference, its length, and if the prompt is unsteady."""
    before = endpoints(random, shape.n, flip_rate=shape.flips)
    after = altered(random, before, to_wrong=shape.build / 2, to_right=shape.build / 2)
    then = (random.random((shape.runs, shape.n)) < before).mean(axis=0)
    unsteady = ((then > 0.0) & (then < 1.0)).astype(float)
    unsure = (before > 0.0) & (before < 1.0)
    length = random.lognormal(0.0, LENGTH_SPREAD, shape.n) * numpy.where(
        unsure, UNSTEADY_LONGER, 1.0
    )
    now = random.random((shape.repeats, shape.n)) < after
    return (
        (now - then).ravel(),
        numpy.tile(length, shape.repeats),
        numpy.tile(unsteady, shape.repeats),
    )


def arrange(
    random: Generator, shape: Shape, order: str
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return value, weight, largest weight and tokens so far of each draw, in their order."""
    value, length, unsteady = draw(random, shape)
    share = ORDERS[order](unsteady, length)
    places = numpy.argsort(random.exponential(size=len(share)) / share)
    value, share, tokens = value[places], share[places], length[places]
    left = numpy.cumsum(share[::-1])[::-1]
    least = numpy.minimum.accumulate(share[::-1])[::-1]
    n = len(value)
    return value, left / (n * share), left / (n * least), tokens.cumsum() / tokens.sum()


def measure(shape: Shape, order: str) -> Stops:
    """Simulate the runs of a row in an order; the result is always the same."""
    random = numpy.random.default_rng([*f"{shape}".encode()])
    rows = [arrange(random, shape, order) for _ in range(RUNS)]
    values, weights, most, tokens = (numpy.stack(one) for one in zip(*rows, strict=True))
    n = values.shape[1]
    too_many = most_missing(n, MAX_MISSING) + 1
    with numpy.errstate(divide="ignore", invalid="ignore"):
        unseen = numpy.log1p(-numpy.minimum(1.0, too_many / (n * most)))
    evident = (-unseen.cumsum(axis=1) >= -numpy.log(EPS)).argmax(axis=1)
    passed = find_passes(values, weights, most, shape.margin)
    stop = numpy.maximum(evident, passed)
    decided = stop < n - 1
    at = numpy.where(decided, stop, n - 1)
    return Stops(
        answers=float((at + 1).mean()) / n,
        tokens=float(tokens[numpy.arange(RUNS), at].mean()),
        decided=float(decided.mean()),
        few_missing=float(evident.mean() + 1) / n,
    )


def find_passes(
    values: FloatArray, weights: FloatArray, most: FloatArray, margin: float
) -> FloatArray:
    """Return for each run the draw at which a drop of the margin is excluded, else the last one."""
    runs, n = values.shape
    fixed, adaptive = numpy.ones((len(GRID), runs)), numpy.ones(runs)
    squares, so_far = numpy.full(runs, 4.0 * PRIOR_VARIANCE * PRIOR_WEIGHT), numpy.zeros(runs)
    found, grid = numpy.full(runs, n - 1), numpy.array(GRID)[:, None]
    for t in range(n - 1):
        null, worst = -margin - so_far / n, most[:, t] * -1.0
        room = null - worst
        open_ = (room > 1e-9) & (null < 0.0)
        value, safe = values[:, t] * weights[:, t], numpy.where(open_, room, 1.0)
        step = numpy.where(open_, value - null, 0.0)
        fixed *= 1.0 + grid * step / safe
        gap = numpy.where(open_, -null, 0.0)
        stake = gap / (squares / (PRIOR_WEIGHT + t) + gap * gap + 1e-12)
        adaptive *= 1.0 + numpy.minimum(stake, LARGEST_STAKE / safe) * step
        squares += value**2
        so_far += values[:, t]
        ends = ((fixed.mean(axis=0) + adaptive) / 2.0 >= 1.0 / ALPHA) | (room < -1e-9)
        found = numpy.where(ends & (found == n - 1), t, found)
        if (found < n - 1).all():
            break
    return found


def shapes() -> list[Shape]:
    """Return the rows."""
    once = [
        Shape(n, 1, flips, runs, build)
        for n in (14_042, 1319)
        for flips in (0.034, 0.1)
        for runs in (2, 4)
        for build in (0.0, 0.02)
    ]
    return [*once, Shape(198, 1, 0.1, 4), Shape(198, 4, 0.1, 4), Shape(30, 16, 0.1, 4)]


def main() -> None:
    """Print the table."""
    began = time.monotonic()
    head = ["n x k", "flips", "reference runs", "another build", "few missing", *ORDERS]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    jobs = [(shape, order) for shape in shapes() for order in ORDERS]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = iter(pool.map(measure, *zip(*jobs, strict=True)))
        for shape in shapes():
            stops = [next(found) for _ in ORDERS]
            cells = [
                f"{shape.n} x {shape.repeats}",
                f"{shape.flips:g}",
                str(shape.runs),
                f"{100 * shape.build:g} %",
                f"{100 * stops[0].few_missing:.1f}",
                *(f"{100 * one.answers:.1f}, {100 * one.tokens:.1f}" for one in stops),
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s on {os.cpu_count()} cores", file=sys.stderr)


if __name__ == "__main__":
    main()
