"""Measure the two questions about repeats, under attack: part of `make calibrate`.

The simulations are seeded; nothing is asserted. A margin is a drop on these questions, so that
their chances are fixed and only the answers vary. A proven drop is one that no build of equal
accuracy explains, so that the questions are drawn too. A seed draws more cells than the named ones
(`draw_cells`). Square brackets hold exact 95 % intervals, in bold if above the level.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from textwrap import fill

import numpy

from serve_eval.stats.bounds import Bounds, BoundsMethod, noninferiority
from serve_eval.stats.drop import Method, drop_test, equal_accuracy_test
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.paired_t import average_largest_gain
from serve_eval.stats.pairs import pair
from serve_eval.stats.score_bounds import mean_score_p
from tests.stats.calibrate_paired import share, table
from tests.stats.simulation import altered, endpoints

REPLICATES = 500
SUITES = 100
DRAWN = 12
"""Number of cells that a seed draws for each of the two questions."""
SEED = 20261129
LEVEL = 0.05
TESTS = 40
Random = numpy.random.Generator


def _all(chance, random, n):
    return numpy.full(n, chance)


def _beta(a, b, random, n):
    return random.beta(a, b, n)


def _few(random, n):
    return random.choice([0.0, 0.5, 1.0], n, p=[0.2, 0.3, 0.5])


def _mixture(flip_rate, random, n):
    return endpoints(random, n, flip_rate=flip_rate)


SHAPES = {
    "all .5": partial(_all, 0.5),
    "all .97 (ceiling)": partial(_all, 0.97),
    "all .12 (floor)": partial(_all, 0.12),
    "0, .5 and 1": _few,
    "Beta(.5, .5)": partial(_beta, 0.5, 0.5),
    "Beta(.2, .1)": partial(_beta, 0.2, 0.1),
    "Beta(5, 1)": partial(_beta, 5.0, 1.0),
    "Beta(1, 1)": partial(_beta, 1.0, 1.0),
}
BUILDS = {
    "all .03": partial(_all, 0.03),
    "all .1": partial(_all, 0.1),
    "all .5": partial(_all, 0.5),
    "all .9": partial(_all, 0.9),
    "all .97": partial(_all, 0.97),
    "Beta(.5, 9.5)": partial(_beta, 0.5, 9.5),
    "Beta(1, 9)": partial(_beta, 1.0, 9.0),
    "Beta(9, 1)": partial(_beta, 9.0, 1.0),
    "Beta(.2, .1)": partial(_beta, 0.2, 0.1),
    "flip rate .034": partial(_mixture, 0.034),
    "flip rate .191": partial(_mixture, 0.191),
}


# ------------------------------------------------------------------------------------------------------  # noqa: E501
# the margin, on these questions


@dataclass(frozen=True, slots=True)
class MarginJob:
    """Comparisons of `n` prompts by K and M answers, whose true drop is the margin.

    `moved`: the drop is that of few prompts that are lost for good, else of all in proportion.
    `grades` of an answer: 2 is right or wrong, 3 has halves.
    """

    shape: str
    n: int
    k: int
    m: int
    margin: float = 0.05
    moved: bool = False
    grades: int = 2

    @property
    def name(self):
        """The cell in words."""
        how = "lost for good" if self.moved else "in proportion"
        return f"{self.shape}, {how}{', halves' if self.grades > 2 else ''}"


MARGIN_JOBS = [
    *(MarginJob(shape, 30, 64, 64) for shape in SHAPES),
    *(MarginJob("all .5", n, 1, 1) for n in (10, 30, 200)),
    *(MarginJob("Beta(.5, .5)", n, k, m) for n in (10, 100) for k, m in ((2, 2), (3, 1), (8, 3))),
    *(MarginJob("all .97 (ceiling)", 30, k, m) for k, m in ((2, 2), (64, 2), (2, 64), (1, 3))),
    *(MarginJob("all .12 (floor)", 30, k, m) for k, m in ((2, 2), (64, 2), (2, 64), (1, 3))),
    MarginJob("Beta(.2, .1)", 200, 64, 64, 0.01),
    MarginJob("0, .5 and 1", 30, 4, 4, 0.1, moved=True),
    MarginJob("Beta(1, 1)", 30, 4, 4, 0.1, grades=3),
    MarginJob("Beta(5, 1)", 100, 3, 1, 0.05, grades=3),
]


def lose(random, chances, drop, *, moved):
    """Return chances whose mean is lower by exactly `drop`."""
    if not moved:
        return chances * (1.0 - drop / chances.mean())
    after, left = chances.copy(), drop * len(chances)
    for place in random.permutation(len(chances)):
        lost = min(left, float(after[place]))
        after[place] -= lost
        left -= lost
    return after


def draw_answers(random, runs, chances, grades=2):
    """Draw runs of answers with these means and equally spaced grades from 0 to 1."""
    steps = grades - 1
    return random.binomial(steps, chances, (runs, len(chances))) / steps


UNUSED = Bounds(BoundsMethod.NONE, 0.0, 0.0, 0.0)
"""Bounds that are not computed: p alone says whether the margin is excluded."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """Numbers of comparisons that exclude the margin: by us, and by the spread of the questions."""

    of: int
    at_margin: int
    none: int
    none_by_questions: int


def exclude(job):
    """Simulate comparisons with a drop of the margin, and without a drop."""
    random = numpy.random.default_rng([SEED, *job.name.encode(), job.n, job.k, job.m])
    counts = [0, 0, 0, 0]
    for _ in range(REPLICATES):
        before = SHAPES[job.shape](random, job.n)
        if before.mean() <= job.margin:
            continue
        counts[0] += 1
        lost = lose(random, before, job.margin, moved=job.moved)
        for place, after in ((1, lost), (2, before)):
            pairs = pair(
                draw_answers(random, job.k, before, job.grades),
                draw_answers(random, job.m, after, job.grades),
                lo=0.0, hi=1.0, higher_is_better=True,
            )  # fmt: skip
            counts[place] += noninferiority(pairs, job.margin, LEVEL, ends=UNUSED).p < LEVEL
        counts[3] += mean_score_p(pairs.worst.round(12), -job.margin) < LEVEL
    return Excluded(*counts)


# ------------------------------------------------------------------------------------------------------  # noqa: E501
# a proven drop, against any build of equal accuracy


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Comparisons with a build of equal accuracy, or one that is worse by `drop`.

    `kind` is "same", "steadier" (it always answers alike), "steadier reference", "redrawn" (other
    prompts of the same shape) or "altered" (4 % of the prompts for good, half of them lost).
    """

    shape: str
    kind: str
    n: int
    k: int
    m: int
    drop: float = 0.0


BUILD_JOBS = [
    BuildJob("all .1", "steadier", 30, 3, 8),
    BuildJob("all .03", "steadier", 100, 3, 8),
    *(BuildJob(shape, "steadier", 30, 8, 8) for shape in ("all .03", "all .1", "Beta(.5, 9.5)")),
    BuildJob("all .03", "steadier", 100, 8, 8),
    BuildJob("all .9", "steadier", 30, 8, 8),
    BuildJob("all .97", "steadier", 100, 3, 8),
    BuildJob("all .97", "steadier reference", 30, 8, 8),
    BuildJob("all .9", "steadier reference", 30, 8, 8),
    BuildJob("Beta(1, 9)", "steadier reference", 100, 3, 8),
    BuildJob("Beta(.2, .1)", "steadier reference", 100, 3, 8),
    *(BuildJob(shape, "redrawn", 30, 3, 8) for shape in ("Beta(.5, 9.5)", "Beta(.2, .1)")),
    *(BuildJob(shape, "redrawn", 100, 2, 1) for shape in ("Beta(1, 9)", "Beta(9, 1)")),
    *(BuildJob("flip rate .034", "altered", 198, k, m) for k, m in ((3, 1), (10, 1), (3, 3))),
    *(BuildJob("Beta(.2, .1)", "same", 198, k, m) for k, m in ((2, 1), (3, 1), (8, 8))),
]
POWER_JOBS = [
    *(BuildJob("flip rate .034", "same", 1319, k, 1, 0.01) for k in (3, 10)),
    *(BuildJob("flip rate .034", "same", 198, k, m, 0.04) for k, m in ((3, 1), (3, 3))),
    BuildJob("flip rate .191", "same", 198, 3, 1, 0.0625),
    BuildJob("Beta(.2, .1)", "same", 198, 3, 1, 0.06),
    BuildJob("all .9", "same", 198, 3, 1, 0.06),
    BuildJob("all .1", "same", 198, 3, 1, 0.05),
    BuildJob("all .5", "same", 100, 3, 1, 0.1),
    BuildJob("all .5", "same", 30, 8, 8, 0.08),
]
SUITE_JOBS = {
    "40 steadier builds of all .1, n = 30": BuildJob("all .1", "steadier", 30, 3, 8),
    "40 steadier builds of all .03, n = 100": BuildJob("all .03", "steadier", 100, 8, 8),
    "40 builds of Beta(.5, 9.5) redrawn, n = 30": BuildJob("Beta(.5, 9.5)", "redrawn", 30, 3, 8),
}


def draw_build(job, random):
    """Draw one comparison."""
    before = BUILDS[job.shape](random, job.n)
    after = before
    if job.kind == "steadier":
        after = (random.random(job.n) < before) * 1.0
    elif job.kind == "steadier reference":
        before = (random.random(job.n) < before) * 1.0
    elif job.kind == "redrawn":
        after = BUILDS[job.shape](random, job.n)
    elif job.kind == "altered":
        after = altered(random, before, to_wrong=0.02, to_right=0.02)
    if job.drop:
        certain = job.shape.startswith("flip")
        after = (
            altered(random, after, to_wrong=job.drop)
            if certain
            else lose(random, after, job.drop, moved=False)
        )
    sides = draw_answers(random, job.k, before), draw_answers(random, job.m, after)
    return pair(*sides, lo=0.0, hi=1.0, higher_is_better=True)


@dataclass(frozen=True, slots=True)
class Proven:
    """Numbers of comparisons that prove a drop at LEVEL and at LEVEL / TESTS, by test."""

    of: int
    auto: tuple[int, int]
    flips: tuple[int, int]
    exchange: tuple[int, int]


def prove(job):
    """Simulate the comparisons of a job."""
    random = numpy.random.default_rng(
        [SEED, *f"{job.shape} {job.kind}".encode(), job.n, job.k, job.m]
    )
    found = {way: [] for way in _WAYS}
    for _ in range(REPLICATES):
        pairs = draw_build(job, random)
        exchange, flips = (_p(pairs, way) for way in (Method.EXCHANGE, Method.SIGN_FLIP))
        # The automatic test of several runs is the larger p of the two; the exchange takes long.
        equal = equal_accuracy_test(
            pairs.worst.round(12), average_largest_gain(pairs, at_best=False)
        ).p_mid
        found[Method.AUTO].append(max(exchange, equal))
        found[Method.SIGN_FLIP].append(max(exchange, flips))
        found[Method.EXCHANGE].append(exchange)
    counts = [
        tuple(sum(p <= level for p in found[way]) for level in (LEVEL, LEVEL / TESTS))
        for way in _WAYS
    ]
    return Proven(REPLICATES, *counts)


_WAYS = (Method.AUTO, Method.SIGN_FLIP, Method.EXCHANGE)


def _p(pairs, method):
    p = drop_test(pairs, method).p
    return 1.0 if p is None else p


def run_suites(name):
    """Count suites in which Holm's correction leaves a proven drop, by us and by sign flips."""
    random = numpy.random.default_rng([SEED, *name.encode()])
    ours = flips = 0
    for _ in range(SUITES):
        drawn = [draw_build(SUITE_JOBS[name], random) for _ in range(TESTS)]
        ours += min(holm([_p(pairs, Method.AUTO) for pairs in drawn])) <= LEVEL
        flips += min(holm([_p(pairs, Method.SIGN_FLIP) for pairs in drawn])) <= LEVEL
    return ours, flips


# ------------------------------------------------------------------------------------------------------  # noqa: E501
# tables


def draw_cells(seed=SEED, number=DRAWN):
    """Draw cells of both questions by a seed, with n 10 to 200 and 1 to 64 answers a side."""
    random = numpy.random.default_rng(seed)
    sizes, runs, kinds = (10, 20, 40, 80, 200), (1, 2, 3, 5, 8, 16, 64), ("steadier", "redrawn")
    margins, builds = [], []
    shapes = [one for one in BUILDS if not one.startswith("flip")]
    for _ in range(number):
        n, k, m = (int(random.choice(one)) for one in (sizes, runs, runs))
        margins.append(
            MarginJob(
                str(random.choice(list(SHAPES))), n, k, m, float(random.choice([0.03, 0.05, 0.1])),
                moved=bool(random.random() < 0.5), grades=int(random.choice([2, 2, 3])),
            )
        )  # fmt: skip
        n, k, m = (int(random.choice(one)) for one in (sizes[1:], runs[1:6], runs[:6]))
        kind = str(random.choice([*kinds, "steadier reference", "same"]))
        builds.append(BuildJob(str(random.choice(shapes)), kind, n, k, m))
    return margins, builds


def margin_table(jobs, found):
    """Return the table of excluded margins."""
    rows = [
        [
            job.name, str(job.n), f"{job.k}, {job.m}", f"{100 * job.margin:g}",
            share(one.at_margin, one.of, LEVEL), f"{100 * one.none / one.of:.1f}",
            f"{100 * one.none_by_questions / one.of:.1f}",
        ]
        for job, one in zip(jobs, found, strict=True)
    ]  # fmt: skip
    header = [
        "chances",
        "n",
        "answers",
        "margin",
        "drop = margin",
        "no drop",
        "the same, by question",
    ]
    return table(header, rows)


def build_table(jobs, found):
    """Return the table of builds of equal accuracy that are called worse."""
    rows = [
        [
            f"{job.shape}, {job.kind}", str(job.n), f"{job.k}, {job.m}",
            *(share(count, one.of, level) for count, level in zip(one.auto, LEVELS, strict=True)),
            *(f"{100 * count / one.of:.2f}" for count in one.flips),
            f"{100 * one.exchange[0] / one.of:.1f}",
        ]
        for job, one in zip(jobs, found, strict=True)
    ]  # fmt: skip
    names = ["p <= 5 %", "p <= .125 %", "signs, 5 %", "signs, .125 %", "exchange alone, 5 %"]
    return table(["build", "n", "runs", *names], rows)


def power_table(jobs, found):
    """Return the table of true drops that are proven, with the power that the test gives up."""
    rows = [
        [
            job.shape, str(job.n), f"{job.k}, {job.m}", f"{100 * job.drop:g}",
            f"{100 * one.auto[0] / one.of:.1f}", f"{100 * one.flips[0] / one.of:.1f}",
            f"{100 * (one.flips[0] - one.auto[0]) / one.of:+.1f}",
            f"{100 * one.auto[1] / one.of:.1f}", f"{100 * one.flips[1] / one.of:.1f}",
        ]
        for job, one in zip(jobs, found, strict=True)
    ]  # fmt: skip
    names = ["5 %", "signs, 5 %", "given up", ".125 %", "signs, .125 %"]
    return table(["chances", "n", "runs", "points lost", *names], rows)


LEVELS = (LEVEL, LEVEL / TESTS)


def main():
    began = time.monotonic()
    more = draw_cells()
    margins, builds = [*MARGIN_JOBS, *more[0]], [*BUILD_JOBS, *more[1]]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        excluded = list(pool.map(exclude, margins))
        proven = list(pool.map(prove, [*builds, *POWER_JOBS]))
        suites = dict(zip(SUITE_JOBS, pool.map(run_suites, SUITE_JOBS), strict=True))
    print(write_tables(margins, excluded, builds, proven, suites))
    print(f"\n{time.monotonic() - began:.0f} s on {os.cpu_count()} cores")


def write_tables(
    margins,
    excluded,
    builds,
    proven,
    suites,
):
    """Return all measurements as Markdown."""
    drawn = f"in % of {REPLICATES} comparisons; the last {DRAWN} rows were drawn by a seed:"
    rows = [
        [name, share(ours, SUITES, LEVEL), share(flips, SUITES)]
        for name, (ours, flips) in suites.items()
    ]
    return "\n\n".join(
        [
            fill(
                f"**The margin, on these questions.** A drop of it is excluded at 5 %, {drawn}", 100
            ),
            margin_table(margins, excluded),
            fill(f"**A proven drop, of builds of equal accuracy,** {drawn}", 100),
            build_table(builds, proven[: len(builds)]),
            "**Power**, in % of comparisons in which the drop is real:",
            power_table(POWER_JOBS, proven[len(builds) :]),
            f"**Suites of {TESTS} tests** under Holm's correction: any false alarm, in % of"
            f" {SUITES} suites:",
            table(["suite of builds of equal accuracy", "ours", "sign flips"], rows),
        ]
    )


if __name__ == "__main__":
    main()
