"""Measure how often healthy workers are accused and the bad one is named, as Markdown tables.

Part of `make calibrate`; seeded, printed, never asserted.
"""

import numpy

from serve_eval.evidence.attribution.latency import Timed, in_run
from serve_eval.stats.contingency import Cell, rows

ALPHA = 0.01
ROUNDS = 2000
ANSWERS = 400
BAD = (0.05, 0.2, 0.5)
DEPLOYMENTS = {
    "1 x 4, in turns": (1, 4, True),
    "2 x 2, in turns": (2, 2, True),
    "2 x 4, in turns": (2, 4, True),
    "2 x 4, at random": (2, 4, False),
    "4 x 8, at random": (4, 8, False),
}
"""Numbers of context and generation workers, and whether requests take turns."""
WORSE = (0.1, 0.2, 0.4)
"""Extra share of wrong answers of one generation worker, or one pair, over 10 %."""

SPREADS = (0.5, 1.0, 2.0)
"""Standard deviations of the logarithm of response times."""
SLOWER = (2.0, 3.0, 5.0)
"""Factors by which one generation worker is slower, at a deviation of 0.5."""


def _named(deployment, chance, random):
    contexts, generations, _ = DEPLOYMENTS[deployment]
    c, g = _dealt(deployment, random)
    cells = []
    for context in range(contexts):
        for generation in range(generations):
            n = int(((c == context) & (g == generation)).sum())
            if n:
                bad = int(random.binomial(n, chance(context, generation)))
                cells.append(Cell(f"c{context}", f"g{generation}", n, bad))
    return {"+".join(row.worker) for row in rows({"wrong answers": cells}, ALPHA) if row.accused}


def _dealt(deployment, random):
    """Return the numbers of the context and of the generation worker of each answer."""
    contexts, generations, in_turns = DEPLOYMENTS[deployment]
    k = numpy.arange(ANSWERS)
    if in_turns:
        return k % contexts, k % generations
    return random.integers(contexts, size=ANSWERS), random.integers(generations, size=ANSWERS)


def _slow(deployment, spread, times, random):
    """Return the workers called slow if response times are log-normal.

    Those of g1 are `times` times as long.
    """
    c, g = _dealt(deployment, random)
    taken = numpy.exp(spread * random.standard_normal(ANSWERS)) * numpy.where(g == 1, times, 1.0)
    answers = [Timed(f"c{c[k]}", f"g{g[k]}", f"{k}", float(taken[k]), 0) for k in range(ANSWERS)]
    return {row.worker for row in in_run(answers) if row.slow}


def _slow_rows(rounds):
    head = [f"alike, spread {spread:g}" for spread in SPREADS] + [
        f"one {times:g} times" for times in SLOWER
    ]
    lines = [f"| who is called slow | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
    for name, (contexts, generations, in_turns) in DEPLOYMENTS.items():
        cells = []
        for spread in SPREADS:
            random = numpy.random.default_rng(round(100 * spread))
            found = sum(bool(_slow(name, spread, 1.0, random)) for _ in range(ROUNDS))
            cells.append(f"{100 * found / ROUNDS:.2f}")
        right = {"g1", "c1"} if in_turns and contexts == generations else {"g1"}
        for times in SLOWER:
            random = numpy.random.default_rng(round(100 * times))
            told = [_slow(name, 0.5, times, random) for _ in range(rounds)]
            counts = sum(right <= one for one in told), sum(bool(one - right) for one in told)
            cells.append(" / ".join(f"{100 * count / rounds:.3g}" for count in counts))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def tables():
    """Return all three tables."""
    lines = [
        f"| context x generation workers | {' | '.join(f'{share:.0%} wrong' for share in BAD)} |",
        "|---" * (1 + len(BAD)) + "|",
    ]
    for name in DEPLOYMENTS:
        cells = []
        for share in BAD:
            random = numpy.random.default_rng(round(100 * share))
            found = sum(bool(_named(name, lambda c, g, p=share: p, random)) for _ in range(ROUNDS))
            cells.append(f"{100 * found / ROUNDS:.2f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    head = [f"{what} +{by:.0%}" for what in ("worker", "pair") for by in WORSE]
    lines += ["", f"| who is named | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
    rounds = max(1, ROUNDS // 10)
    for name, (contexts, generations, in_turns) in DEPLOYMENTS.items():
        tied = in_turns and contexts == generations
        cells = []
        for pair in (False, True):
            for by in WORSE:
                if pair and (in_turns or contexts == 1):
                    cells.append("-")  # these workers have only one partner each
                    continue
                random = numpy.random.default_rng(round(100 * by))
                right = "c1+g1" if pair or tied else "g1"
                told = [
                    _named(
                        name,
                        lambda c, g, d=by, p=pair: 0.1 + d * (g == 1 and (c == 1 or not p)),
                        random,
                    )
                    for _ in range(rounds)
                ]
                counts = [sum(right in one for one in told)]
                if pair:
                    counts.append(
                        sum(right not in one and bool(one & {"c1", "g1"}) for one in told)
                    )
                counts.append(
                    sum(bool(one - {right} - ({"c1", "g1"} if pair else set())) for one in told)
                )
                cells.append(" / ".join(f"{100 * count / rounds:.3g}" for count in counts))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_slow_rows(rounds)])


def main():
    print(tables())


if __name__ == "__main__":
    main()
