"""Measure how often the arm `alone` of the invariants is broken, as a Markdown table.

Batches change nothing, the numerics or the accuracy. Part of `make calibrate`; seeded, printed,
never asserted.
"""

import numpy

from serve_eval.stats.sign_tests import mcnemar
from serve_eval.workflows.invariants.check import ALPHA
from tests.stats.calibrate_flips import ACCURACY, FLIP_RATE, PROMPTS, percent
from tests.stats.simulation import endpoints, run

ROUNDS = 10_000
ARMS = 5
"""Results under Holm's correction: the arms of one task without a chat template and chunks."""


def _alone(random, n, *, benign, damage, every_time):
    """Return whether `alone` is broken by changed answers, and by the direction of the scores.

    Changed answers are compared with those of `again`.
    """
    chances = endpoints(random, n, flip_rate=FLIP_RATE, accuracy=ACCURACY)
    # The prompts that other numerics move are drawn once more: neither way of computing is better.
    moved = numpy.flatnonzero(random.random(n) < benign / (2 * ACCURACY * (1 - ACCURACY)))
    many = chances.copy()
    many[moved] = endpoints(random, len(moved), flip_rate=FLIP_RATE, accuracy=ACCURACY)
    if damage and every_time:
        many = numpy.where(random.random(n) < damage, 0.0, many)
    elif damage:
        many = many * (1.0 - damage)
    base, again = run(random, many), run(random, many)
    alone, alone_again = run(random, chances), run(random, chances)
    level = ALPHA / ARMS
    changed = mcnemar(
        int(((alone != base) & (again == base)).sum()),
        int(((again != base) & (alone == base)).sum()),
    )
    change = base + again - alone - alone_again
    worse, better = int((change < 0).sum()), int((change > 0).sum())
    directed = min(1.0, 2 * mcnemar(max(worse, better), min(worse, better)).p_mid)
    return changed.p_mid <= level, directed <= level


BATCHES = {
    "batches change nothing": (0.0, 0.0, False),
    "other numerics: 5 % of the answers, either way": (0.05, 0.0, False),
    "other numerics: 10 % of the answers, either way": (0.1, 0.0, False),
    "other numerics: 20 % of the answers, either way": (0.2, 0.0, False),
    "10 % of the answers wrong, others each time": (0.0, 0.1, False),
    "10 % of the answers wrong, the same ones each time": (0.0, 0.1, True),
    "20 % of the answers wrong, the same ones each time": (0.0, 0.2, True),
}


def tables():
    """Return the table."""
    lines = [
        "| with many in flight | prompts | by changed answers | by direction |",
        "|---|---|---|---|",
    ]
    for what, (benign, damage, every_time) in BATCHES.items():
        for n in PROMPTS:
            random = numpy.random.default_rng(n)
            rounds = max(1, ROUNDS // 5) if damage else ROUNDS
            found = [
                _alone(random, n, benign=benign, damage=damage, every_time=every_time)
                for _ in range(rounds)
            ]
            cells = [percent(sum(column), rounds) for column in zip(*found, strict=True)]
            lines.append(f"| {what} | {n} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    print(tables())


if __name__ == "__main__":
    main()
