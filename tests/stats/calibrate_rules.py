"""Measure verdicts of healthy endpoints by rule, for one task and for eight: `make calibrate`.

The reference is one run or the mean of three, and the candidate one more run of the same endpoint.
Figures are percentages of simulated runs with their exact 95 % intervals. The simulations are
seeded; nothing is asserted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy

from serve_eval.stats.classic import classic_test
from serve_eval.stats.judgement import judge
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.pairs import pair
from tests.stats.calibrate_paired import share
from tests.stats.simulation import endpoints, run

RUNS, OF_MANY = 1000, 250
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Cell:
    """A task of `n` prompts, of which two runs of one endpoint change `flip_rate`."""

    task: str
    n: int
    flip_rate: float
    before: int = 1


CELLS = [
    Cell(task, n, flip_rate, before)
    for task, n, rates in (
        ("gpqa_diamond", 198, (0.034, 0.191, 0.3)),
        ("gsm8k", 1319, (0.034, 0.1)),
        ("mmlu", 4096, (0.034,)),
    )
    for flip_rate in rates
    for before in (1, 3)
]
EIGHT = [Cell("gsm8k", n, rate) for n, rate in ((198, 0.191), (1319, 0.034))]


def judge_once(cell, random):
    """Return the outcomes by classic and by paired, and the p of the second, of a healthy run."""
    chances = endpoints(random, cell.n, flip_rate=cell.flip_rate, accuracy=0.5)
    reference = [run(random, chances) for _ in range(cell.before)]
    candidate = run(random, chances)
    value = 100 * float(numpy.mean([one.mean() for one in reference]))
    threshold = classic_test(cell.n, value, 50.0, ALPHA, 0.2).threshold
    classic = "PASS" if 100 * float(candidate.mean()) >= threshold else "FAIL"
    pairs = pair(reference, [candidate], lo=0.0, hi=1.0, higher_is_better=True)
    told = judge(pairs, margin=(value - threshold) / 100, alpha=ALPHA, max_missing=0.02)
    return classic, told.finding.value, told.test.p or 1.0


def show_one():
    """Print the outcomes of single tasks."""
    print(
        "| task, n | flip rate | reference runs | classic FAIL | paired PASS | INCONCLUSIVE"
        " | FAIL |"
    )
    print("|---|---|---|---|---|---|---|")
    for number, cell in enumerate(CELLS):
        random = numpy.random.default_rng([20261129, number])
        found = [judge_once(cell, random) for _ in range(RUNS)]
        classic = Counter(one[0] for one in found)
        paired = Counter(one[1] for one in found)
        passed = paired["PASS"] + paired["SMALL_DROP"]
        cells = (
            *(f"{cell.task}, {cell.n}", f"{cell.flip_rate:g}", f"{cell.before}"),
            *(share(classic["FAIL"], RUNS), share(passed, RUNS)),
            *(share(paired["INCONCLUSIVE"], RUNS), share(paired["FAIL"], RUNS)),
        )
        print(f"| {' | '.join(cells)} |")


def show_eight():
    """Print how often any of eight tasks of a healthy run fails, or proves a drop."""
    print(
        "\n| eight tasks of n | flip rate | classic, any FAIL | paired, any FAIL alone | with Holm"
        " | any proven drop alone | with Holm |"
    )
    print("|---|---|---|---|---|---|---|")
    for number, cell in enumerate(EIGHT):
        random = numpy.random.default_rng([20261130, number])
        runs = [[judge_once(cell, random) for _ in range(8)] for _ in range(OF_MANY)]
        cells = (
            *(f"{cell.n}", f"{cell.flip_rate:g}"),
            *(share(sum(one), OF_MANY) for one in zip(*map(_any, runs), strict=True)),
        )
        print(f"| {' | '.join(cells)} |")


def _any(tasks):
    """Return whether any task fails by classic, and fails or is proven alone and with Holm."""
    corrected = holm([p for *_, p in tasks])
    failed = [finding == "FAIL" for _, finding, _ in tasks]
    return (
        any(classic == "FAIL" for classic, *_ in tasks),
        any(failed),
        any(one and p <= ALPHA for one, p in zip(failed, corrected, strict=True)),
        any(p <= ALPHA for *_, p in tasks),
        any(p <= ALPHA for p in corrected),
    )


def main():
    show_one()
    show_eight()


if __name__ == "__main__":
    main()
