"""Measure the level of every rule for questions that share passages, as Markdown tables.

Part of `make calibrate`; seeded, printed, never asserted. "Named" are the figures with the groups,
"ignored" those of the same answers without them.

A question has its own chance of a right answer (`simulation.endpoints`, 3.4 % flips). In addition a
passage is misread as a whole, and all its questions are then wrong: by one endpoint in some of its
runs (`noise`), or for good by one of two builds that misread equally many (`builds`).
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy

from serve_eval.stats.bounds import noninferiority
from serve_eval.stats.classic import Decision
from serve_eval.stats.clusters import cluster_keys, effective_size, two_sided_p
from serve_eval.stats.drop import drop_test
from serve_eval.stats.early_paired import EarlyGroups, EarlyPaired
from serve_eval.stats.intervals import wilson
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from serve_eval.stats.pairs import pair
from serve_eval.stats.slices import find_paired_slice
from tests.stats.calibrate_sums import percent
from tests.stats.simulation import altered, endpoints, run

Random = numpy.random.Generator
REPLICATES, SLICE_REPLICATES = 1000, 300
ALPHA, LOAD_ALPHA, SLICE_ALPHA = 0.05, 0.01, 0.05
ACCURACY, FLIP_RATE = 0.7, 0.034
MARGIN = 0.05
SUBJECTS, DRAWS = 8, 299
"""Slices of passages that follow each other, and draws, of a search for a slice."""


@dataclass(frozen=True, slots=True)
class Job:
    """Comparisons on `n` questions of passages with `size` each, or with that mean if `unequal`.

    `noise` is the chance that a run misreads a passage. `builds` is the share of the passages that
    one of the sides misreads for good.
    """

    n: int
    size: int
    noise: float = 0.0
    builds: float = 0.0
    unequal: bool = False

    @property
    def value(self):
        """The mean score of either side."""
        return ACCURACY * (1.0 - self.noise) * (1.0 - self.builds / 2.0)

    @property
    def name(self):
        sizes = f"1 to {2 * self.size - 1}" if self.unequal else f"{self.size}"
        what = "independent" if not self.noise and not self.builds else ""
        what += "noise" if self.noise else ""
        what += "another build" if self.builds else ""
        return f"{self.n} in passages of {sizes}: {what}"


JOBS = (
    Job(200, 5),
    Job(200, 5, noise=0.05),
    Job(200, 20, noise=0.05),
    Job(200, 5, builds=0.2),
    Job(200, 20, builds=0.4),
    Job(200, 5, builds=0.2, unequal=True),
    Job(1300, 5, noise=0.05),
    Job(1300, 5, builds=0.1),
    Job(1300, 20, builds=0.2),
    Job(1300, 10, builds=0.1, unequal=True),
)
KINDS, HOW = ("proven", "margin", "load", "interval"), ("named", "ignored")
POWERS = (0.03, 0.05, 0.1)
"""True drops of which the power is shown."""


def passages_of(random, job):
    """Return the passage of each question."""
    if not job.unequal:
        return numpy.arange(job.n) // job.size
    sizes = random.integers(1, 2 * job.size, job.n)
    return numpy.repeat(numpy.arange(job.n), sizes)[: job.n]


def answer(random, job, passages):
    """Return the scores of a reference and of a candidate."""
    right = endpoints(random, job.n, flip_rate=FLIP_RATE, accuracy=ACCURACY)
    count = int(passages.max()) + 1
    fate = random.random(count)
    lost = fate < job.builds / 2.0
    won = (job.builds / 2.0 <= fate) & (fate < job.builds)
    sides = []
    for misread in (won, lost):
        noisy = misread | (random.random(count) < job.noise)
        sides.append(run(random, right) * ~noisy[passages])
    return sides[0], sides[1]


def _pair(before, after, names):
    keys = None if names is None else cluster_keys(names)
    return pair(before, after, lo=0.0, hi=1.0, higher_is_better=True, clusters=keys)


def lower_by_margin(random, job, scores, passages):
    """Return the scores after a loss with the mean MARGIN that comes in whole passages."""
    kept = random.random(int(passages.max()) + 1) >= MARGIN / job.value
    return scores * kept[passages]


def count(job, seed):
    """Return how often each rule errs, with the groups and without."""
    random = numpy.random.default_rng([52, seed])
    totals = {f"{kind} {how}": 0 for kind in KINDS for how in HOW}
    for _ in range(REPLICATES):
        passages = passages_of(random, job)
        names = [f"p{one}" for one in passages.tolist()]
        before, after = answer(random, job, passages)
        worse = lower_by_margin(random, job, after, passages)
        change = after - before
        places = numpy.flatnonzero(change)
        signs = numpy.sign(change[places]).astype(int).tolist()
        for how, known in (("named", names), ("ignored", None)):
            test = drop_test(_pair(before, after, known))
            totals[f"proven {how}"] += test.p is not None and test.p <= ALPHA
            excluded = noninferiority(_pair(before, worse, known), MARGIN, ALPHA)
            totals[f"margin {how}"] += excluded.holds
            some = [""] * len(places) if known is None else [known[i] for i in places.tolist()]
            totals[f"load {how}"] += two_sided_p(signs, some) <= LOAD_ALPHA
            size = effective_size(after, None if known is None else passages)
            low, high = wilson(size * after.mean(), size, 0.05)
            totals[f"interval {how}"] += not low <= job.value <= high
    return totals


def count_slices(job, seed):
    """Return how often a subject is named for a healthy candidate."""
    random = numpy.random.default_rng([53, seed])
    totals = {"named": 0, "ignored": 0}
    for _ in range(SLICE_REPLICATES):
        passages = passages_of(random, job)
        before, after = answer(random, job, passages)
        subject = passages * SUBJECTS // (int(passages.max()) + 1)
        members = numpy.stack([subject == one for one in range(SUBJECTS)], axis=1)
        for how, known in (("named", passages), ("ignored", None)):
            one = find_paired_slice(
                before, after, members, level=SLICE_ALPHA, clusters=known, draws=DRAWS
            )
            totals[how] += one is not None
    return totals


def count_power(job, drop, seed):
    """Return how often a drop of single questions is proven."""
    random = numpy.random.default_rng([54, seed])
    totals = {"named": 0, "ignored": 0}
    for _ in range(REPLICATES // 4):
        passages = passages_of(random, job)
        names = [f"p{one}" for one in passages.tolist()]
        right = endpoints(random, job.n, flip_rate=FLIP_RATE, accuracy=ACCURACY)
        before, after = run(random, right), run(random, altered(random, right, to_wrong=drop))
        for how, known in (("named", names), ("ignored", None)):
            test = drop_test(_pair(before, after, known))
            totals[how] += test.p is not None and test.p <= ALPHA
    return totals


def tables():
    """Return all tables."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        levels = [pool.submit(count, job, seed) for seed, job in enumerate(JOBS)]
        slices = [pool.submit(count_slices, job, seed) for seed, job in enumerate(JOBS[:6])]
        powers = {
            (job, drop): pool.submit(count_power, job, drop, seed)
            for job in (JOBS[0], Job(1300, 5))
            for seed, drop in enumerate(POWERS)
        }
        return "\n\n".join(
            [
                f"In percent of {REPLICATES} comparisons without a drop: a drop is proven (level"
                f" {ALPHA:.0%}); a margin of {100 * MARGIN:g} points is\nexcluded although it is"
                f" lost ({ALPHA:.0%}); `load` accuses ({LOAD_ALPHA:.0%}); the value's interval"
                f" misses ({ALPHA:.0%}).",
                tabulate(
                    ["questions", *(f"{kind}, {how}" for kind in KINDS for how in HOW)],
                    [
                        [job.name, *_show(one.result(), REPLICATES)]
                        for job, one in zip(JOBS, levels, strict=True)
                    ],
                ),
                f"A subject of {SUBJECTS} is named for a healthy candidate, in percent of"
                f" {SLICE_REPLICATES} searches at level {SLICE_ALPHA:.0%} with {DRAWS}\ndraws:",
                tabulate(
                    ["questions", *HOW],
                    [
                        [job.name, *_show(one.result(), SLICE_REPLICATES)]
                        for job, one in zip(JOBS, slices, strict=False)
                    ],
                ),
                f"Drops of single questions that are proven, in percent of {REPLICATES // 4}"
                " comparisons:",
                tabulate(
                    ["questions", "drop", *HOW],
                    [
                        [
                            f"{job.n} in passages of {job.size}: independent",
                            f"{100 * drop:g} points",
                            *_show(one.result(), REPLICATES // 4),
                        ]
                        for (job, drop), one in powers.items()
                    ],
                ),
            ]
        )


def _show(found, trials):
    return [percent(hits / trials, trials) for hits in found.values()]


def tabulate(head, rows):
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main():
    """Print all tables."""
    start = time.monotonic()
    print(tables())
    print(f"\n{time.monotonic() - start:.0f} s on {os.cpu_count()} cores")


EARLY_GROUPS_ALPHA, EPS, MAX_MISSING = 0.05, 0.01, 0.02
EARLY_GROUPS_REPLICATES = 1000
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


def count_early_groups(cell, drop, seed):
    """Return the runs that stop, with looks at groups and at single prompts."""
    random = numpy.random.default_rng([55, seed])
    found = {"groups": Found(), "prompts": Found()}
    promise = {
        "alpha": SPENT_ON_LOOKS * EARLY_GROUPS_ALPHA,
        "eps": EPS,
        "max_missing": cell.max_missing,
    }
    for _ in range(EARLY_GROUPS_REPLICATES):
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


def tables_early_groups():
    """Return the table."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = {
            (cell, drop): pool.submit(count_early_groups, cell, times, seed)
            for seed, cell in enumerate(CELLS)
            for drop, times in DROPS.items()
        }
        rows = [_row(cell, drop, one.result()) for (cell, drop), one in jobs.items()]
    head = ["questions", "margin", "drop"]
    head += [f"{what}, {how}" for how in ("groups", "prompts") for what in ("PASS", "FAIL")]
    head += ["asked, groups", "asked, prompts"]
    return (
        f"Decisions by a look, in percent of {EARLY_GROUPS_REPLICATES} runs; a wrong one (PASS or"
        " FAIL at a drop of m, FAIL at\nnone, PASS at 3 m) may come in"
        f" {100 * SPENT_ON_LOOKS * EARLY_GROUPS_ALPHA:g}."
        " The share of the prompts that were looked at, in percent:\n\n" + tabulate(head, rows)
    )


def _row(cell, drop, found):
    counts = [n for one in found.values() for n in (one.passed, one.failed)]
    return [
        cell.name,
        f"{100 * cell.margin:g} points",
        drop,
        *(percent(n / EARLY_GROUPS_REPLICATES, EARLY_GROUPS_REPLICATES) for n in counts),
        *(f"{100 * one.asked / EARLY_GROUPS_REPLICATES:.0f}" for one in found.values()),
    ]


def main_early_groups():
    """Print the table."""
    start = time.monotonic()
    print(tables_early_groups())
    print(f"\n{time.monotonic() - start:.0f} s on {os.cpu_count()} cores")
