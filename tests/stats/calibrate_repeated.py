"""Measure how often attribution accuses healthy servers of runs with repeats.

The router hashes prompts, or deals requests at random. The result is a Markdown table. Part of
`make calibrate`; seeded, printed, never asserted.
"""

from dataclasses import replace

import numpy

from tests.stats.simulation import Routed, accused, interval

UNEVEN = (0.7, 0.1, 0.1, 0.1)
SETTINGS = {
    "hashed": Routed(),
    "hashed, and servers repeat their answers": Routed(steady=True),
    "9 of 10 hashed": Routed(hashed=0.9),
    "at random": Routed(hashed=0.0),
    "at random, and servers repeat their answers": Routed(hashed=0.0, steady=True),
    "at random, shares .7 / .1 / .1 / .1": Routed(hashed=0.0, shares=UNEVEN),
    "hashed, shares .7 / .1 / .1 / .1": Routed(shares=UNEVEN),
    "hashed, 2 context servers at random": Routed(contexts=2),
}
FEW = (2, 8)
REPEATS = {"hashed": (1, 2, 4, 8), "at random": (1, 2, 4, 8)}
"""Numbers of answers to each prompt; FEW for other settings."""
ROUNDS, FOUND_ROUNDS = 300, 50
WORSE = 0.3


def tables():
    """Return the table of levels, and of power against one bad server."""
    lines = [
        (
            "| requests go to servers | repeats | healthy accused, answers permuted | prompts"
            f" permuted (95 %) | +{WORSE:.0%} named, prompts permuted | another named |"
        ),
        "|---" * 6 + "|",
    ]
    for name, setting in SETTINGS.items():
        for repeats in REPEATS.get(name, FEW):
            lines.append(f"| {name} | {repeats} | {_row(setting, repeats)} |")
    return "\n".join(lines)


def _row(setting, repeats):
    routed = replace(setting, repeats=repeats)
    random = numpy.random.default_rng([repeats, round(10 * setting.hashed), setting.contexts])
    healthy = [accused(random, routed) for _ in range(ROUNDS)]
    before, now = (sum(bool(one[i]) for one in healthy) for i in (0, 1))
    low, high = interval(now, ROUNDS)
    found = [accused(random, routed, worse=WORSE)[1] for _ in range(FOUND_ROUNDS)]
    named = sum("g1" in one for one in found)
    others = sum(bool(one - {"g1"}) for one in found)
    return (
        f"{100 * before / ROUNDS:.3g} | {100 * now / ROUNDS:.3g} ({100 * low:.2g} to"
        f" {100 * high:.2g}) | {100 * named / FOUND_ROUNDS:.3g} | {100 * others / FOUND_ROUNDS:.3g}"
    )


def main():
    print(tables())


if __name__ == "__main__":
    main()
