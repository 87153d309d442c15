"""Count how often slices are named and healthy runs accused: `python -m` this module prints it.

Seeded and printed as Markdown; `test_slices` asserts a part of it.
"""

import sys

import numpy

from serve_eval.workflows.diagnose.slicing import compare_slices, find_slices
from tests.workflows.diagnose.sliced_runs import (
    FAULTS,
    build_data,
    draw_pair,
    draw_prompts,
)

SIZES = (400, 1319)
GREEDY = 0.9
"""Share of the prompts that a second run answers as the first."""
UNRELATED = (0.4, 0.65)
"""Shares of right answers of unrelated models; that of the prompts is about .7."""


def break_none(prompts):
    return numpy.zeros(len(prompts.chance), dtype=bool)


def break_all(prompts):
    return numpy.ones(len(prompts.chance), dtype=bool)


def run_trial(
    seed,
    n,
    broken,
    *,
    alone=False,
    same=GREEDY,
    rate=0.9,
    longer=1.0,
    unrelated=None,
):
    """Return what is found of B with A as its reference, or of B alone."""
    random = numpy.random.default_rng(seed)
    prompts = draw_prompts(random, n)
    hit = broken(prompts)
    a, b = draw_pair(random, prompts, hit, same=same, rate=rate, longer=longer, unrelated=unrelated)
    data = build_data(prompts)
    return list(find_slices(b, (), data) if alone else compare_slices(a, b, (), data))


def count_named(words, n, broken, seeds, *, alone=False):
    """Return how many trials name the slice with these words."""
    found = [run_trial(seed, n, broken, alone=alone) for seed in seeds]
    return sum(len(one) == 1 and one[0].told.startswith(words) for one in found)


def _print_faults(seeds):
    heads = [f"n = {n}, {how}" for how in ("reference", "alone") for n in SIZES]
    print(f"| named of {len(seeds)} | {' | '.join(heads)} |\n{'|---' * (1 + len(heads))}|")
    for name, (broken, words) in FAULTS.items():
        cells = [
            f"{count_named(words, n, broken, seeds, alone=alone)}"
            for alone in (False, True)
            for n in SIZES
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _print_false(runs):
    print("| runs without a slice | n | found |\n|---|---|---|")
    for name, broken, same, rate, count in (
        ("healthy, two independent draws per prompt", break_none, 0.0, 0.0, runs),
        ("healthy, greedy", break_none, GREEDY, 0.0, runs // 4),
        ("uniform loss of 3 %", break_all, GREEDY, 0.03, runs // 20),
        ("uniform loss of 10 %", break_all, GREEDY, 0.1, runs // 20),
        ("uniform loss of 30 %", break_all, GREEDY, 0.3, runs // 20),
        ("uniform loss of 30 %, two independent draws", break_all, 0.0, 0.3, runs // 20),
    ):
        for alone in (False, True):
            found = [
                run_trial(seed, 400, broken, alone=alone, same=same, rate=rate)
                for seed in range(count)
            ]
            how = "alone" if alone else "with a reference"
            accused = sum(map(bool, found))
            print(f"| {name}, {how} | 400 | {accused} of {count} |", flush=True)
    count = runs // 25
    for same, how in ((GREEDY, ""), (0.0, ", two independent draws")):
        found = [run_trial(s, 100, break_all, same=same, rate=0.3) for s in range(count)]
        name = f"uniform loss of 30 %{how}, with a reference"
        print(f"| {name} | 100 | {sum(map(bool, found))} of {count} |", flush=True)
    for share in UNRELATED:
        for n in (100, 400):
            found = [run_trial(s, n, break_none, unrelated=share) for s in range(count)]
            name = f"another model, {100 * share:.0f} % right"
            print(f"| {name} | {n} | {sum(map(bool, found))} of {count} |", flush=True)


if __name__ == "__main__":
    _print_false(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    print()
    _print_faults(range(20))
