"""Measure tokens and wrong verdicts of the early stop, by task and state, and print tables.

Run by hand; seeded, printed, never asserted.

The rule is the paired one at its default margin; all runs of a row are looked at together
(`early_at_once`). "Wrong" counts
early verdicts that the same run, asked to its end, does not get at the whole alpha. "Weaker" counts
runs without an early verdict whose last one differs because the looks have used half of alpha.
Tokens are those of the answers looked at: lengths spread over a factor of 10, and those of prompts
that the reference answers mostly wrong are twice as long.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy

from serve_eval.stats.classic import Decision
from serve_eval.stats.early_stop import most_missing
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from serve_eval.stats.pairs import pair
from tests.stats import calibrate_early_repeats as base
from tests.stats.calibrate_early import _judge_counts, _judge_pairs
from tests.stats.calibrate_early_repeats import Cell, most
from tests.stats.early_at_once import PROMISE, Promise, stop

if TYPE_CHECKING:
    from numpy.random import Generator

    from serve_eval.stats.inputs import FloatArray

RUNS = 200
"""Runs that a row simulates."""
LENGTH_SPREAD = 0.7
"""Standard deviation of the logarithm of a length: nine of ten lie within a factor of 10."""
TENTH_FROM = 3.0
"""Drop in margins from which a run should need a tenth of its tokens."""
POINTS = (0, 1, 2, 5, 10)


@dataclass(frozen=True, slots=True)
class State:
    """A row: a task, what its endpoint lost in points, and the promise of the looks."""

    task: str
    cell: Cell
    promise: Promise = PROMISE

    @property
    def points(self) -> float:
        return round(100 * self.cell.drop * self.cell.margin, 1)

    @property
    def bound(self) -> float:
        """Wald's share: 9.2 times the variance, over the squared distance from the margin."""
        cell = self.cell
        drop = cell.drop * cell.margin
        away = (cell.margin - drop) ** 2
        needed = 9.2 * (cell.flips + drop) / (cell.prompts * cell.repeats)
        return min(1.0, needed / away) if away else 1.0

    @property
    def few_missing(self) -> float:
        """The least share of the answers that shows few are missing, if none is so far."""
        n = self.cell.prompts * self.cell.repeats
        return 1.0 - self.promise.eps ** (1.0 / (most_missing(n, self.promise.max_missing) + 1))

    @property
    def goal(self) -> float:
        """The share of the tokens that the row should need."""
        if self.cell.drop >= TENTH_FROM:
            return 0.1
        third = self.bound <= 0.25 and not self.cell.drop
        return 1.0 / 3.0 if third else min(1.0, 1.5 * self.bound)

    def explain(self, tokens: float) -> str:
        """Return "yes" if the row needs as few tokens as the goal, else what stands against it."""
        if tokens <= self.goal + 0.0005:
            return "yes"
        if self.few_missing > self.goal:
            return "no: few missing"
        return "no: the bound" if self.bound > self.goal else "no: the bets"


@dataclass(slots=True)
class Seen:
    """Numbers of simulated runs by what came of them, and sums of shares."""

    runs: int = 0
    passed: int = 0
    failed: int = 0
    wrong: int = 0
    opposite: int = 0
    weaker: int = 0
    asked: float = 0.0
    tokens: float = 0.0


def weigh(random: Generator, then: FloatArray, now: FloatArray) -> FloatArray:
    """Return the share of the tokens of a run up to each answer, in the order of asking."""
    hard = then.mean(axis=0) < 0.5
    lengths = random.lognormal(0.0, LENGTH_SPREAD, now.shape) * numpy.where(hard, 2.0, 1.0)
    return lengths.cumsum() / lengths.sum()


def judge(cell: Cell, then: FloatArray, now: FloatArray, alpha: float) -> Decision:
    """Return the verdict of a whole run at a level."""
    if cell.repeats == 1:
        change = now[0] - then[0]
        down, up = int((change < 0).sum()), int((change > 0).sum())
        return _judge_counts(cell.prompts, down, up, cell.margin, alpha)
    return _judge_pairs(pair(then, now, lo=0.0, hi=1.0, higher_is_better=True), cell.margin, alpha)


def measure(state: State) -> Seen:
    """Simulate the runs of a row; the result is always the same."""
    cell = state.cell
    size = cell.prompts * cell.repeats
    random, seen = numpy.random.default_rng([*f"{cell}".encode()]), Seen(RUNS)
    drawn = [base.answer(random, cell) for _ in range(RUNS)]
    then, now = (numpy.stack(one) for one in zip(*drawn, strict=True))
    looked_at, passes = stop(cell, then, now, state.promise)
    for run, at in enumerate(looked_at.tolist()):
        early = at < size
        seen.asked += at / size
        seen.tokens += float(weigh(random, then[run], now[run])[at - 1])
        last = judge(cell, then[run], now[run], base.ALPHA)
        if not early:
            left = (1.0 - SPENT_ON_LOOKS) * base.ALPHA
            seen.weaker += judge(cell, then[run], now[run], left) is not last
            continue
        stopped = Decision.PASS if passes[run] else Decision.FAIL
        seen.passed += stopped is Decision.PASS
        seen.failed += stopped is Decision.FAIL
        seen.wrong += last is not stopped
        seen.opposite += {last, stopped} == {Decision.PASS, Decision.FAIL}
    return seen


TASKS = {
    "MMLU": [(14_042, 1)],
    "GSM8K": [(1319, 1), (1319, 4)],
    "GPQA": [(198, 1), (198, 4), (198, 16)],
    "AIME": [(30, 4), (30, 16), (30, 64)],
    "JSON mode": [(100, 1)],
}


def list_states(flips: float = 0.034, points: tuple[int, ...] = POINTS) -> list[State]:
    """Return the rows of task and state."""
    found = []
    for task, sizes in TASKS.items():
        for n, k in sizes:
            sound = Cell(n, k, flips, runs=min(k, 4))
            found += [
                State(task, replace(sound, drop=lost / 100 / sound.margin)) for lost in points
            ]
    return found


def list_unsteady() -> list[State]:
    """Return the sound rows and the worst ones of sampled answers, which flip more."""
    return [one for one in list_states(0.1, (0, 10)) if one.task in ("GSM8K", "GPQA", "AIME")]


def list_looser() -> list[State]:
    """Return the sound rows that wait for the proof of few missing answers, with other promises."""
    waiting = [one for one in list_states(points=(0,)) if one.few_missing > one.goal]
    promises = Promise(eps=0.05), Promise(max_missing=0.05), Promise(max_missing=0.1)
    return [
        replace(
            one, promise=p, task=f"{one.task}, eps {p.eps:g}, {100 * p.max_missing:g} % missing"
        )
        for one in waiting
        for p in promises
    ]


def row(state: State, seen: Seen) -> list[str]:
    """Return the cells of a row."""
    cell, runs = state.cell, seen.runs
    tokens = seen.tokens / runs
    return [
        state.task,
        f"{cell.prompts} x {cell.repeats}",
        f"{100 * cell.margin:.1f}",
        f"{state.points:g}",
        most(seen.passed, runs),
        most(seen.failed, runs),
        most(seen.wrong, runs),
        most(seen.opposite, runs),
        most(seen.weaker, runs),
        f"{100 * seen.asked / runs:.1f}",
        f"{100 * tokens:.1f}",
        f"{100 * state.bound:.1f}",
        f"{100 * state.few_missing:.1f}",
        f"{100 * state.goal:.1f}",
        state.explain(tokens),
        str(runs),
    ]


def main() -> None:
    """Print the tables that the command line names, else all."""
    began = time.monotonic()
    tables = {"states": list_states, "unsteady": list_unsteady, "looser": list_looser}
    head = ["task", "n x k", "margin", "down", "PASS", "FAIL", "wrong", "opposite", "weaker"]
    head += ["asked", "tokens", "bound", "few missing", "goal", "met", "runs"]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for chosen in sys.argv[1:] or tables:
            rows = tables[chosen]()
            print(f"\n{chosen}:\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
            for state, seen in zip(rows, pool.map(measure, rows), strict=True):
                print(f"| {' | '.join(row(state, seen))} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
