"""Attack the early stop of the paired rule, and print how often an attack succeeds.

Run by hand; seeded, printed, never asserted. `calibrate_early_repeats attacks` has others. The
code for real runs looks, with all that delays a stop. "Differs" counts early verdicts that the same
run, asked to its end, does not get at the whole alpha. At a drop of the margin a PASS by a look is
promised in at most 2.5 % of the runs.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy

from serve_eval.evaluation.early_stop import EarlyStopping
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.schema import Metric
from serve_eval.stats.classic import Decision
from serve_eval.stats.early_paired import EarlyGroups, EarlyPaired
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from tests.stats import calibrate_early_repeats as base
from tests.stats.calibrate_early_repeats import Cell, most
from tests.stats.calibrate_early_states import judge
from tests.stats.early_at_once import Promise, stop
from tests.stats.simulation import endpoints

if TYPE_CHECKING:
    from numpy.random import Generator

    from serve_eval.stats.inputs import FloatArray

MOST_ANSWERS, MOST_RUNS, LEAST_RUNS = 60_000, 400, 100
"""Answers and runs that a row simulates at most, and the runs at least."""
TASKS = 8
IN_FLIGHT = 64
"""Requests that a server answers at a time, of an endpoint that slows."""
SLOW_WRONG = 3.0
"""Time of a wrong answer, by that of a right one."""


@dataclass(frozen=True, slots=True)
class Attack:
    """A row: `kind` names what is wrong with the runs of a cell.

    `share` is that of the answers that are cut, `size` the number of prompts of a passage.
    """

    kind: str
    cell: Cell
    share: float = 0.0
    size: int = 1


@dataclass(slots=True)
class Met:
    """Numbers of simulated runs, by what came of them."""

    runs: int = 0
    passed: int = 0
    failed: int = 0
    differs: int = 0
    opposite: int = 0
    asked: float = 0.0

    def add(self, decision: Decision | None, last: Decision, asked: float) -> None:
        """Count a run; `decision` is that of a look before the end, `last` that of the whole."""
        self.runs += 1
        self.asked += asked
        self.passed += decision is Decision.PASS
        self.failed += decision is Decision.FAIL
        self.differs += decision not in (None, last)
        self.opposite += {decision, last} == {Decision.PASS, Decision.FAIL}


def cut(random: Generator, then: FloatArray, now: FloatArray, share: float) -> None:
    """Make the answers wrong to the prompts that the reference gets right most seldom, but does."""
    right = then.mean(axis=0) + 1e-6 * random.random(then.shape[1]) * (then.max(axis=0) > 0.0)
    hardest = numpy.argsort(numpy.where(right > 0.0, right, 2.0), kind="stable")
    now[:, hardest[: round(share * len(right))]] = 0.0


def measure_alone(attack: Attack) -> Met:
    """Look at runs one by one, as at real ones."""
    cell, met = attack.cell, Met()
    random, size = numpy.random.default_rng([*f"{attack}".encode()]), cell.prompts * cell.repeats
    while met.runs < MOST_RUNS and (met.runs < LEAST_RUNS or met.asked * size < MOST_ANSWERS):
        then, now = base.answer(random, cell)
        if attack.kind.startswith("cut"):
            cut(random, then, now, attack.share)
        prefix = base.look(random, cell, then, now)
        early = prefix.looked_at < size
        last = base.end(cell, then, now) if early else Decision.UNDECIDED
        met.add(prefix.decision if early else None, last, prefix.looked_at / size)
    return met


def measure_passages(attack: Attack) -> Met:
    """Lose whole passages, the margin on average, and look at passages with all their repeats."""
    cell, met, per = attack.cell, Met(), attack.size
    random, k = numpy.random.default_rng([*f"{attack}".encode()]), cell.repeats
    groups, size = cell.prompts // per, cell.prompts * k
    while met.runs < MOST_RUNS and (met.runs < LEAST_RUNS or met.asked * size < MOST_ANSWERS):
        before = endpoints(random, cell.prompts, flip_rate=cell.flips)
        then = (random.random((cell.runs, cell.prompts)) < before).mean(axis=0)
        lost = numpy.repeat(random.random(groups) < cell.drop * cell.margin / 0.7, per)
        now = (random.random((k, cell.prompts)) < before * ~lost) - then
        test = EarlyGroups(
            [per * k] * groups, cell.margin, alpha=SPENT_ON_LOOKS * base.ALPHA, eps=base.EPS
        )
        for one in random.permutation(groups).tolist():
            values = now[:, one * per : (one + 1) * per].ravel().tolist()
            if test.update_unit([(value, value) for value in values]) is not None:
                break
        early = test.decision if test.looked_at < size else None
        met.add(early, early or Decision.UNDECIDED, test.looked_at / size)
    return met


def arrive(random: Generator, now: FloatArray) -> FloatArray:
    """Return the times at which answers come from a server that slows, in the order of starts."""
    n = len(now)
    taken = random.exponential(size=n) * numpy.where(now > 0.0, 1.0, SLOW_WRONG)
    taken *= 1.0 + 4.0 * numpy.arange(n) / n
    free, ends = [0.0] * min(IN_FLIGHT, n), []
    for one in taken.tolist():
        free.sort()
        ends.append(free[0] + one)
        free[0] = ends[-1]
    return numpy.array(ends)


def measure_slow(attack: Attack) -> Met:
    """Look whenever an answer comes; "by arrival" bets on answers as they come instead."""
    cell, met = attack.cell, Met()
    random, n = numpy.random.default_rng([*f"{attack.cell}".encode()]), cell.prompts
    promise = {"alpha": SPENT_ON_LOOKS * base.ALPHA, "eps": base.EPS}
    while met.runs < MOST_RUNS and (met.runs < LEAST_RUNS or met.asked * n < MOST_ANSWERS):
        then, now = base.answer(random, cell)
        places = numpy.argsort(arrive(random, now[0]), kind="stable").tolist()
        test = EarlyPaired(n, cell.margin, **promise)
        if attack.kind.endswith("by arrival"):
            test.update((now[0] - then[0])[places].tolist())
            looked_at = test.looked_at
        else:
            came: dict[int, float] = {}
            accumulator = SimpleNamespace(
                task=SimpleNamespace(metric=Metric()),
                score=came.get,
                is_doubted=lambda place: False,
            )
            prefix = EarlyStopping(
                cast(ScoreAccumulator, accumulator),
                lambda test=test: test,
                range(n),
                seed=0,
                higher_is_better=True,
                before=then[0].tolist(),
            )
            for place in places:
                came[place] = float(now[0, place])
                if prefix.look():
                    break
            looked_at = prefix.looked_at
        early = test.decision if looked_at < n else None
        last = judge(cell, then, now, base.ALPHA) if early else Decision.UNDECIDED
        met.add(early, last, looked_at / n)
    return met


def measure_together(attack: Attack) -> Met:
    """Look at tasks that share alpha. A run passes if a task does, and fails if one does."""
    cell, met = attack.cell, Met()
    random, n = numpy.random.default_rng([*f"{attack}".encode()]), cell.prompts * cell.repeats
    for _ in range(MOST_RUNS // 2):
        drawn = [base.answer(random, cell) for _ in range(TASKS)]
        then, now = (numpy.stack(one) for one in zip(*drawn, strict=True))
        looked_at, passes = stop(cell, then, now, Promise(tests=TASKS))
        early = looked_at < n
        decision = Decision.FAIL if (early & ~passes).any() else None
        decision = Decision.PASS if (early & passes).any() else decision
        met.add(decision, decision or Decision.UNDECIDED, float(looked_at.mean()) / n)
    return met


def attacks() -> list[Attack]:
    """Return the rows."""
    found = []
    for one in (Cell(198, 1, 0.0, alike=1.0, runs=1), Cell(198, 4, 0.0, alike=1.0)):
        found.append(Attack("ties: all answers as before", one))
    for lost, of in ((0.015, "wrong"), (0.03, "wrong"), (0.03, "any")):
        kind = f"{100 * lost:g} % missing, of {of}"
        for n, k, runs in ((10, 64, 4), (198, 64, 4), (15_000, 1, 1)):
            found.append(Attack(kind, Cell(n, k, 0.1, runs=runs, lost=lost, of=of)))
    for n, k, runs in ((10, 64, 4), (198, 64, 4), (15_000, 1, 1)):
        found.append(Attack("sound", Cell(n, k, 0.1, runs=runs)))
        found.append(Attack("turns worse at half", Cell(n, k, 0.1, runs=runs, turns=True)))
    for n, k, runs in ((198, 4, 4), (1319, 1, 1)):
        found.append(Attack("cut: 2 % of the answers", Cell(n, k, 0.1, runs=runs), share=0.02))
        found.append(Attack("cut: 10 % of the answers", Cell(n, k, 0.1, runs=runs), share=0.1))
    for n, k in ((200, 1), (200, 4), (1300, 4)):
        for drop in (1.0, 0.0):
            found.append(Attack("passages of 5", Cell(n, k, 0.034, drop, runs=min(k, 4)), size=5))
    for n in (198, 1319):
        for drop in (0.0, 1.0):
            one = Cell(n, 1, 0.1, drop, runs=1)
            found += [Attack("slows", one), Attack("slows, bets by arrival", one)]
    for n, k, runs in ((198, 4, 4), (1319, 1, 1)):
        for drop in (1.0, 0.0):
            found.append(Attack("eight tasks", Cell(n, k, 0.1, drop, runs=runs)))
    return found


def measure(attack: Attack) -> Met:
    """Simulate the runs of a row; the result is always the same."""
    ways = {
        "passages": measure_passages,
        "slows": measure_slow,
        "slows,": measure_slow,
        "eight": measure_together,
    }
    return ways.get(attack.kind.split()[0], measure_alone)(attack)


def row(attack: Attack, met: Met) -> list[str]:
    """Return the cells of a row."""
    cell, runs = attack.cell, met.runs
    return [
        attack.kind,
        f"{cell.prompts} x {cell.repeats}",
        f"{cell.flips:g}",
        f"{cell.drop:g} m",
        *(most(n, runs) for n in (met.passed, met.failed, met.differs, met.opposite)),
        f"{100 * met.asked / runs:.1f}",
        str(runs),
    ]


def main() -> None:
    """Print the table."""
    began = time.monotonic()
    head = ["attack", "n x k", "flips", "drop", "PASS", "FAIL", "differs", "opposite", "asked"]
    print(f"| {' | '.join([*head, 'runs'])} |\n|{' --- |' * (len(head) + 1)}")
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for attack, met in zip(attacks(), pool.map(measure, attacks()), strict=True):
            print(f"| {' | '.join(row(attack, met))} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
