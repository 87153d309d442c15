"""How often a healthy run is said to degrade, and how soon one that does is noticed, as Markdown tables: part of
`make calibrate`. Printed, never asserted; seeded."""

from __future__ import annotations

import numpy

from serve_eval.degradation import ALPHA, VALUE
from serve_eval.stats.onset import limit, onset

LEVEL = ALPHA[VALUE]
BAD = (0.02, 0.1, 0.3, 0.6)
HEALTHY = {100: 10_000, 400: 4000, 1319: 2000, 4096: 1000, 14042: 300}
"""Runs simulated by the number of their requests."""
FALLS = ((0.95, 0.5), (0.9, 0.5), (0.8, 0.5), (0.8, 0.6))
RUNS = 500


def tables() -> str:
    """Both tables."""
    lines = [
        f"| requests | limit | {' | '.join(f'{share:.0%} wrong' for share in BAD)} |",
        "|---" * (2 + len(BAD)) + "|",
    ]
    for n, runs in HEALTHY.items():
        cells = []
        for share in BAD:
            random = numpy.random.default_rng([n, round(100 * share)])
            found = sum(onset(random.random(n) < share, LEVEL) is not None for _ in range(runs))
            cells.append(f"{100 * found / runs:.2f}")
        lines.append(f"| {n} | {limit(n, LEVEL):.2f} | {' | '.join(cells)} |")
    lines += [
        "",
        "| falls at 100 of 400 from, to | noticed within 40 | noticed | median requests until then |",
        "|---|---|---|---|",
    ]
    for before, after in FALLS:
        delays = []
        for seed in range(RUNS):
            random = numpy.random.default_rng(seed)
            row = numpy.concatenate([random.random(100) >= before, random.random(300) >= after])
            one = onset(row, LEVEL)
            if one is not None and one.noticed > 100:
                delays.append(one.noticed - 100)
        soon = sum(delay <= 40 for delay in delays)
        shown = f"{100 * soon / RUNS:.1f} | {100 * len(delays) / RUNS:.1f} | {numpy.median(delays):.0f}"
        lines.append(f"| {before:.0%}, {after:.0%} | {shown} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())
