"""Measure the error rates of every rule and print them as Markdown tables: `make calibrate`.

The simulations are seeded; nothing is asserted.

Figures are percentages of the simulated comparisons. Brackets hold the exact value by a sum over
all outcomes, if there is one.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy

from serve_eval.stats.bounds import bounds
from serve_eval.stats.classic import Decision, classic_test, decide
from serve_eval.stats.drop import Method, drop_test
from serve_eval.stats.finding import PairedFinding, finding
from serve_eval.stats.pairs import pair
from serve_eval.stats.planning import compute_paired_power, noninferiority_power
from serve_eval.stats.score_bounds import score_noninferiority_p
from serve_eval.stats.sign_tests import mcnemar
from tests.stats.simulation import altered, chance_below, endpoints, run, turned

ALPHA, BETA = 0.05, 0.2
ACCURACY = 0.7
POINT = 0.01
REPLICATES, FEWER = 10_000, 2000
"""Simulated comparisons: of most tests, and of those with three reference runs and the finding."""
CHUNK = 500
CELLS = [
    *(("MMLU", 4096, flip_rate) for flip_rate in (0.034, 0.088)),
    *(("GSM8K", 1319, flip_rate) for flip_rate in (0.034, 0.088)),
    *(("GPQA", 198, flip_rate) for flip_rate in (0.034, 0.191)),
    *(("JSON", 100, flip_rate) for flip_rate in (0.034, 0.191)),
]
TESTED = ("0", "theta/2", "theta")


@dataclass(frozen=True, slots=True)
class Job:
    """Comparisons of one size between an endpoint and the same one worse by `drop`.

    The tables call the drop `name`.
    """

    task: str
    n: int
    flip_rate: float
    name: str
    drop: float
    margin: float

    @property
    def shown(self):
        """The first cells of its row."""
        return [f"{self.task} {self.n}", f"{self.flip_rate:.3f}"]


def measure(job):
    """Simulate the comparisons of a job and return the share that each rule fails.

    The result of a job is always the same.
    """
    random = numpy.random.default_rng([job.n, round(1e6 * job.flip_rate), round(1e6 * job.drop)])
    counts = []
    with_three = numpy.zeros(2, dtype=int)
    for first in range(0, REPLICATES, CHUNK):
        before = endpoints(random, (CHUNK, job.n), flip_rate=job.flip_rate, accuracy=ACCURACY)
        after = altered(random, before, to_wrong=job.drop)
        reference, candidate = run(random, before), run(random, after)
        down, up = turned(reference, candidate)
        counts += zip(
            reference.sum(axis=1).astype(int).tolist(), down.tolist(), up.tolist(), strict=True
        )
        if job.name in TESTED and first < FEWER:
            three = numpy.stack([reference, run(random, before), run(random, before)], axis=1)
            with_three += sum(map(_with_three_runs, three, candidate))
    changes = [(down, up) for _, down, up in counts]
    rates = {
        "classic": _mean(
            _classic_fails(right, right + up - down, job.n) for right, down, up in counts
        ),
        "exact": _mean(mcnemar_of(*change).p_exact <= ALPHA for change in changes),
        "mid-p": _mean(mcnemar_of(*change).p_mid <= ALPHA for change in changes),
        "excludes m": _mean(
            score_noninferiority_p(*change, job.n, job.margin) < ALPHA for change in changes
        ),
        "excludes 1": _mean(
            score_noninferiority_p(*change, job.n, POINT) < ALPHA for change in changes
        ),
    }
    if job.name in TESTED:
        rates |= dict(zip(("t", "permutation"), (with_three / FEWER).tolist(), strict=True))
        rates["finding"] = _mean(
            _finding(job.n, *change, job.margin) is PairedFinding.FAIL for change in changes[:FEWER]
        )
    return rates


mcnemar_of = cache(mcnemar)


def _classic_fails(reference, value, n):
    """Judge by the classic rule; `reference` and `value` are numbers of right answers."""
    threshold = classic_test(n, 100 * reference / n, 50.0, ALPHA, BETA).threshold
    return decide((100 * value / n, 100 * value / n), threshold) is Decision.FAIL


def _with_three_runs(reference_runs, candidate):
    """Return 1 for each of Student's t and the permutation test that proves a drop, else 0."""
    pairs = pair(reference_runs, candidate, lo=0.0, hi=1.0, higher_is_better=True)
    found = [drop_test(pairs, method).p for method in (Method.PAIRED_T, Method.AUTO)]
    return numpy.array([p is not None and p <= ALPHA for p in found], dtype=int)


@cache
def _finding(n, down, up, margin):
    pairs = pair(
        numpy.arange(n) >= up, numpy.arange(n) < n - down, lo=0.0, hi=1.0, higher_is_better=True
    )
    return finding(mcnemar_of(down, up).p_mid, ALPHA, bounds(pairs, ALPHA).lower, margin)


def _mean(values):
    row = list(values)
    return sum(row) / len(row)


# --------------------------------------------------------------------------------------------------------  # noqa: E501
# tables


def jobs_of(task, n, flip_rate):
    """Return the drops of one size by their names in the tables."""
    classic = classic_test(n, 0.0, 50.0, ALPHA, BETA)
    margin, theta = -classic.threshold / 100, classic.theta / 100
    drops = {"0": 0.0, "1": POINT, "theta/2": theta / 2, "m": margin, "theta": theta}
    return {name: Job(task, n, flip_rate, name, drop, margin) for name, drop in drops.items()}


def _percent(share, exact=None):
    return f"{100 * share:.1f}" + ("" if exact is None else f" ({100 * exact:.1f})")


def _table(header, rows):
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _failed(job, rates):
    n, phi, drop = job.n, job.flip_rate, job.drop
    return [
        *job.shown,
        "0" if not drop else f"{job.name} = {100 * drop:.2f}",
        _percent(rates["classic"], chance_below(n, phi / 2 + drop, phi / 2, -n * job.margin)),
        _percent(rates["exact"], compute_paired_power(drop, n, phi, ALPHA, mid_p=False)),
        _percent(rates["mid-p"], compute_paired_power(drop, n, phi, ALPHA)),
        _percent(rates["t"]),
        _percent(rates["permutation"]),
        _percent(rates["finding"]),
    ]


def _excluded(jobs, rates):
    job = jobs["0"]

    def cells(key, margin):
        """Return the cells for a drop of the margin and for no drop."""
        return [
            _percent(
                rates[name][f"excludes {key}"],
                noninferiority_power(margin, job.n, job.flip_rate, ALPHA, drop=drop),
            )
            for name, drop in ((key, margin), ("0", 0.0))
        ]

    return [*job.shown, *cells("1", POINT), f"{100 * job.margin:.2f}", *cells("m", job.margin)]


def tables(cells, found):
    """Return all measurements as Markdown."""
    both = [(named, {name: found[job] for name, job in named.items()}) for named in cells]
    size = ["task, n", "flip rate"]
    failed = [
        *size,
        "drop",
        "classic",
        "McNemar exact",
        "McNemar mid-p",
        "t, 3 runs, before",
        "permutation, 3 runs",
        "finding FAIL",
    ]
    excluded = [*size, "1 point, drop 1", "1 point, no drop", "m", "m, drop m", "m, no drop"]
    return "\n\n".join(
        [
            f"Failed, in % of {REPLICATES} comparisons ({FEWER} in the last three columns):",
            _table(
                failed,
                [_failed(named[name], rates[name]) for named, rates in both for name in TESTED],
            ),
            f"Margin excluded, in % of {REPLICATES} comparisons:",
            _table(excluded, [_excluded(*one) for one in both]),
        ]
    )


def main():
    began = time.monotonic()
    cells = [jobs_of(*cell) for cell in CELLS]
    jobs = [job for named in cells for job in named.values()]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(jobs, pool.map(measure, jobs), strict=True))
    print(tables(cells, found))
    print(f"\n{time.monotonic() - began:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
