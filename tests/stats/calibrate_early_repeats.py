"""Measure the early stop with repeats and print it as Markdown tables.

Part of `make calibrate`; seeded, printed, never asserted.

The code for real runs (`early_stop.EarlyStopping`) processes simulated ones answer by answer, with
the reasons that delay a stop. The questions of a row are fixed: each has a chance of a right
answer, and lots of runs answer the same ones. "Differs" counts the early verdicts that are not the
verdict of the same run, asked to its end.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy

from serve_eval.evaluation.early_stop import EarlyStopping
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.schema import Metric
from serve_eval.stats.classic import Decision, classic_test
from serve_eval.stats.early_paired import EarlyGroups, EarlyPaired
from serve_eval.stats.early_repeats import EarlyRepeats, make_blocks
from serve_eval.stats.early_stop import EarlyClassic, EarlyVerdict
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from serve_eval.stats.pairs import pair
from tests.stats.calibrate_early import _judge_pairs, whole
from tests.stats.calibrate_sums import percent
from tests.stats.simulation import endpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


ALPHA, EPS, MAX_MISSING = 0.05, 0.01, 0.02
MOST_ANSWERS, MOST_RUNS = 400_000, 1000
"""Answers and runs that a row simulates at most."""
LEAST_RUNS = 20
TURNS_BY = 3.2
"""Drop in margins after half of the run, for an endpoint that turns worse."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A row: `prompts` prompts, each asked `repeats` times, and `runs` runs of the reference.

    `drop` and `margin` are shares of the answers; None: the margin is that of the classic rule.
    `design` is the way to look. `lost` is the share of the answers that are missing, `of` those.
    `turns`: worse after half. `alike`: the chance of a right answer to each prompt.
    """

    prompts: int
    repeats: int
    flips: float
    drop: float = 0.0
    design: str = "rounds"
    runs: int = 4
    points: float | None = None
    lost: float = 0.0
    of: str = "any"
    turns: bool = False
    alike: float | None = None

    @property
    def margin(self):
        """The margin as a share of the answers."""
        if self.points is not None:
            return self.points / 100
        return -classic_test(self.prompts, 0.0, 50.0, ALPHA, 0.2).threshold / 100

    @property
    def bound(self):
        """Wald's bound: the share of the answers that any such test needs, at errors of .01."""
        return 9.2 * self.flips / (self.prompts * self.repeats * self.margin**2)


@dataclass(slots=True)
class Found:
    """Numbers of simulated runs, by what came of them."""

    runs: int = 0
    passed: int = 0
    failed: int = 0
    differs: int = 0
    opposite: int = 0
    asked: float = 0.0
    before: int = 0


def draw(random, cell):
    """Return the chances of a right answer of the reference and of the candidate."""
    n = cell.prompts
    before = (
        endpoints(random, n, flip_rate=cell.flips)
        if cell.alike is None
        else numpy.full(n, cell.alike)
    )
    return before, worsen(random, before, cell.drop * cell.margin)


def worsen(random, before, drop):
    """Return chances that are `drop` lower on average: prompts are lost for good, one in part."""
    after, left = before.copy(), drop * len(before)
    for place in random.permutation(len(before)):
        taken = min(left, after[place]) if before[place] >= 0.5 else 0.0
        after[place] -= taken
        left -= taken
    return after


def answer(random, cell):
    """Return the answers of reference and candidate: a row per run, a column per prompt.

    The prompts and the rows are in the order in which they are asked. NaN: missing.
    """
    before, after = draw(random, cell)
    order = random.permutation(cell.prompts)
    shape = cell.repeats, cell.prompts
    chances = numpy.tile(after[order], (cell.repeats, 1))
    if cell.turns:
        late = worsen(random, before, TURNS_BY * cell.margin)[order]
        half = numpy.arange(chances.size).reshape(shape) >= chances.size // 2
        chances = numpy.where(half, late, chances)
    now = (random.random(shape) < chances).astype(float)
    then = (random.random((cell.runs, cell.prompts)) < before[order]).astype(float)
    if cell.lost and cell.of == "prompts":
        gone = random.choice(cell.prompts, round(cell.lost * cell.prompts), replace=False)
        now[:, gone] = numpy.nan
    elif cell.lost:
        among = numpy.flatnonzero(now.ravel() == 0.0 if cell.of == "wrong" else now.ravel() >= 0.0)
        count = min(len(among), round(cell.lost * now.size))
        now.ravel()[random.choice(among, count, replace=False)] = numpy.nan
    return then, now


def look(random, cell, then, now):
    """Look at a run in the same way as at a real one."""
    n, k = cell.prompts, cell.repeats
    looks = {"eps": EPS, "max_missing": MAX_MISSING}
    paired = {**looks, "alpha": SPENT_ON_LOOKS * ALPHA}
    before, sizes, rounds = then.mean(axis=0), None, None
    order: Sequence[int] = range(n * k)
    test: Callable[[], EarlyVerdict]
    if cell.design == "classic":
        order = random.permutation(n * k).tolist()
        test = partial(EarlyClassic.for_pairs, n * k, cell.margin, **looks)
    elif cell.design == "prompts" and k > 1:
        order, sizes = numpy.arange(n * k).reshape(k, n).T.ravel().tolist(), [k] * n
        test = partial(EarlyGroups, sizes, cell.margin, **paired)
    elif k == 1:
        test = partial(EarlyPaired, n, cell.margin, **paired)
    else:
        noise = float(then.var(axis=0, ddof=1).mean()) if cell.runs > 1 else 0.0
        blocks, rounds = make_blocks(then.tolist(), k, noise), k
        test = partial(EarlyRepeats, n, k, cell.margin, blocks=blocks, **paired)
    accumulator = SimpleNamespace(
        task=SimpleNamespace(metric=Metric()),
        score=now.ravel().tolist().__getitem__,
        is_doubted=lambda place: False,
    )
    prefix = EarlyStopping(
        cast(ScoreAccumulator, accumulator),
        test,
        order,
        seed=0,
        higher_is_better=True,
        before=before.tolist(),
        sizes=sizes,
        rounds=rounds,
    )
    prefix.look()
    return prefix


def end(cell, then, now):
    """Return the verdict of the whole run, without looks."""
    if cell.design == "classic":
        means = numpy.tile(then.mean(axis=0), cell.repeats)
        return whole(means, now.ravel(), cell.margin)
    if numpy.isnan(now).mean() > MAX_MISSING:
        return Decision.UNDECIDED
    pairs = pair(then, now, lo=0.0, hi=1.0, higher_is_better=True)
    return _judge_pairs(pairs, cell.margin, ALPHA)


def measure(cell):
    """Simulate the runs of a row; the result is always the same."""
    size = cell.prompts * cell.repeats
    code = f"{cell}".encode()
    random, found = numpy.random.default_rng([*code]), Found()
    while found.runs < MOST_RUNS and (found.runs < LEAST_RUNS or found.asked * size < MOST_ANSWERS):
        then, now = answer(random, cell)
        prefix = look(random, cell, then, now)
        stopped = prefix.decision if prefix.looked_at < size else None
        found.runs += 1
        found.asked += prefix.looked_at / size
        found.passed += stopped is Decision.PASS
        found.failed += stopped is Decision.FAIL
        if stopped is not None:
            last = end(cell, then, now)
            found.differs += last is not stopped
            found.opposite += {last, stopped} == {Decision.PASS, Decision.FAIL}
            found.before += prefix.looked_at <= size // 2
    return found


def most(count, runs):
    """Return a share in percent with its exact 95 % interval."""
    return percent(count / runs, runs)


SIZES, REPEATS, FLIPS = (10, 30, 198, 1319), (1, 4, 16, 64), (0.034, 0.1)


def states():
    """Return the rows of task and state."""
    return [
        Cell(n, k, flips, drop, design, runs=min(k, 4))
        for design in ("rounds", "classic")
        for n in SIZES
        for k in REPEATS
        for flips in FLIPS
        for drop in (0.0, 1.0, 3.0)
        if drop * Cell(n, k, flips).margin < 0.6
        and (n, k) not in ((10, 1), (10, 4), (30, 1), (1319, 64))
    ]


def attacks():
    """Return the rows in which something else is wrong."""
    found = []
    for design in ("rounds", "classic"):
        for n, k in ((30, 64), (198, 4), (198, 16), (1319, 4)):
            one = Cell(n, k, 0.1, design=design)
            found += [
                replace(one, alike=0.99, drop=1.0),
                replace(one, alike=0.5, drop=1.0),
                replace(one, lost=0.015, of="wrong"),
                replace(one, lost=0.015, of="prompts"),
                replace(one, lost=0.03, of="wrong"),
                replace(one, lost=0.03, of="any"),
                replace(one, lost=0.035, of="prompts"),
            ]
            if design == "rounds":
                found += [replace(one, turns=True)]
                found += [replace(one, runs=runs, drop=drop) for runs in (1, 2) for drop in (0, 1)]
    return found


def designs():
    """Return sound runs that look at rounds or at whole prompts, one after the other."""
    return [
        Cell(n, k, 0.1, design=design, runs=runs)
        for n, k in ((30, 64), (198, 4), (198, 16), (1319, 4))
        for runs in (1, 4)
        for design in ("rounds", "prompts")
    ]


def name(cell):
    """Return what is special in a row."""
    told = []
    if cell.alike is not None:
        told.append(f"each prompt at {cell.alike}")
    if cell.lost:
        told.append(f"{100 * cell.lost:g} % missing, of {cell.of}")
    if cell.turns:
        told.append("turns worse at half")
    told.append(f"{cell.runs} reference run{'s' if cell.runs > 1 else ''}")
    return ", ".join(told)


def row(cell, found):
    """Return the cells of a row."""
    runs = found.runs
    early = f" ({found.before} of {found.passed + found.failed} stops before)" if cell.turns else ""
    return [
        "classic" if cell.design == "classic" else f"pairs, {cell.design}",
        f"{name(cell)}{early}",
        f"{cell.prompts} x {cell.repeats}",
        f"{100 * cell.margin:.1f}",
        f"{cell.flips:g}",
        f"{cell.drop:g} m",
        most(found.passed, runs),
        most(found.failed, runs),
        most(found.differs, runs),
        most(found.opposite, runs),
        f"{100 * found.asked / runs:.1f}",
        f"{100 * min(1.0, cell.bound):.1f}",
        str(runs),
    ]


def main():
    """Print the tables that the command line names, else all."""
    began = time.monotonic()
    tables = {"states": states, "attacks": attacks, "designs": designs}
    head = ["rule", "kind", "n x k", "margin", "flips", "drop", "PASS", "FAIL", "differs"]
    head += ["opposite", "asked", "bound", "runs"]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for chosen in sys.argv[1:] or tables:
            cells = tables[chosen]()
            print(f"\n{chosen}:\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
            for cell, found in zip(cells, pool.map(measure, cells), strict=True):
                print(f"| {' | '.join(row(cell, found))} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
