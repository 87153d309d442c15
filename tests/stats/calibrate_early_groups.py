"""Measure the early stop of pairs for prompts in passages, as Markdown tables.

Part of `make calibrate`; seeded, printed, never asserted. "Groups" are the looks at whole passages,
"prompts" those at single prompts in a random order, which no run with groups makes. The populations
are those of `calibrate_groups`. "Drop m" loses whole passages, the margin on average. Only the
looks are simulated; they have half of alpha.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy

from serve_eval.stats.classic import Decision
from serve_eval.stats.early_paired import EarlyGroups, EarlyPaired
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from tests.stats.calibrate_groups import Job, answer, passages_of, tabulate
from tests.stats.calibrate_sums import percent

ALPHA, EPS, MAX_MISSING = 0.05, 0.01, 0.02
REPLICATES = 1000
DROPS = {"m": 1.0, "0": 0.0, "3 m": 3.0}
"""The true drops, in margins."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs of a job that are looked at for a margin, as a share of the answers."""

    job: Job
    margin: float
    max_missing: float = MAX_MISSING

    @property
    def name(self):
        more = "" if self.max_missing == MAX_MISSING else f", {self.max_missing:.0%} may be missing"
        return f"{self.job.name}{more}"


CELLS = (
    Cell(Job(200, 5, noise=0.02), 0.1),
    Cell(Job(200, 5, noise=0.02), 0.1, max_missing=0.1),
    Cell(Job(1300, 5), 0.03),
    Cell(Job(1300, 5, noise=0.02), 0.05),
    Cell(Job(1300, 20, noise=0.02), 0.05),
    Cell(Job(1300, 20, noise=0.02), 0.1, max_missing=0.1),
    Cell(Job(1300, 10, builds=0.1, unequal=True), 0.05),
    Cell(Job(4096, 5, noise=0.02), 0.02),
    Cell(Job(4096, 20, builds=0.05), 0.05),
)


@dataclass(slots=True)
class Found:
    """Numbers of runs that stopped with each decision, and the share of the prompts looked at."""

    passed: int = 0
    failed: int = 0
    asked: float = 0.0

    def add(self, test):
        """Count a run."""
        stopped = test.decision if test.looked_at < test.n else None
        self.passed += stopped is Decision.PASS
        self.failed += stopped is Decision.FAIL
        self.asked += test.looked_at / test.n


def count(cell, drop, seed):
    """Return the runs that stop, with looks at groups and at single prompts."""
    random = numpy.random.default_rng([55, seed])
    found = {"groups": Found(), "prompts": Found()}
    promise = {"alpha": SPENT_ON_LOOKS * ALPHA, "eps": EPS, "max_missing": cell.max_missing}
    for _ in range(REPLICATES):
        passages = passages_of(random, cell.job)
        before, after = answer(random, cell.job, passages)
        groups = int(passages.max()) + 1
        after = after * (random.random(groups) >= drop * cell.margin / cell.job.value)[passages]
        change = after - before
        parts = numpy.split(change, numpy.flatnonzero(numpy.diff(passages)) + 1)
        by_groups = EarlyGroups([len(one) for one in parts], cell.margin, **promise)
        for place in random.permutation(groups).tolist():
            if by_groups.update_unit([(one, one) for one in parts[place].tolist()]) is not None:
                break
        by_prompts = EarlyPaired(cell.job.n, cell.margin, **promise)
        by_prompts.update(random.permutation(change).tolist())
        found["groups"].add(by_groups)
        found["prompts"].add(by_prompts)
    return found


def tables():
    """Return the table."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = {
            (cell, drop): pool.submit(count, cell, times, seed)
            for seed, cell in enumerate(CELLS)
            for drop, times in DROPS.items()
        }
        rows = [_row(cell, drop, one.result()) for (cell, drop), one in jobs.items()]
    head = ["questions", "margin", "drop"]
    head += [f"{what}, {how}" for how in ("groups", "prompts") for what in ("PASS", "FAIL")]
    head += ["asked, groups", "asked, prompts"]
    return (
        f"Decisions by a look, in percent of {REPLICATES} runs; a wrong one (PASS or FAIL at a"
        f" drop of m, FAIL at\nnone, PASS at 3 m) may come in {100 * SPENT_ON_LOOKS * ALPHA:g}."
        " The share of the prompts that were looked at, in percent:\n\n" + tabulate(head, rows)
    )


def _row(cell, drop, found):
    counts = [n for one in found.values() for n in (one.passed, one.failed)]
    return [
        cell.name,
        f"{100 * cell.margin:g} points",
        drop,
        *(percent(n / REPLICATES, REPLICATES) for n in counts),
        *(f"{100 * one.asked / REPLICATES:.0f}" for one in found.values()),
    ]


def main():
    """Print the table."""
    start = time.monotonic()
    print(tables())
    print(f"\n{time.monotonic() - start:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
