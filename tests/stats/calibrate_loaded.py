"""Measure how often servers are called slow that get more, longer or uncached prompts.

The result is a Markdown table. Part of `make calibrate`; seeded, printed, never asserted.
"""

import numpy

from serve_eval.evidence.attribution.latency import correct_rows, in_run, make_row, usual_time
from tests.stats.simulation import ServedLoadedServers, interval, serve

UNEVEN = (0.7, 0.1, 0.1, 0.1)
HEALTHY = {
    "even shares": ServedLoadedServers(),
    "even shares, in queues": ServedLoadedServers(queued=True),
    "shares .7 / .1 / .1 / .1": ServedLoadedServers(shares=UNEVEN),
    "shares .7 / .1 / .1 / .1, in queues": ServedLoadedServers(shares=UNEVEN, queued=True),
    "shares .4 / .2 / .2 / .2": ServedLoadedServers(shares=(0.4, 0.2, 0.2, 0.2)),
    "long prompts, mixed": ServedLoadedServers(long=0.3),
    "long prompts stick to g0": ServedLoadedServers(long=0.1, sticky=True),
    "only g0 has uncached prompts": ServedLoadedServers(cached=True),
    "50 hashed prompts, 8 repeats": ServedLoadedServers(prompts=50, spread=1.0),
}
SLOW = {
    "even shares, g1 3 times as slow": ServedLoadedServers(slower=3.0),
    "the same in queues": ServedLoadedServers(slower=3.0, queued=True),
    "long prompts, mixed, g1 3 times as slow": ServedLoadedServers(long=0.3, slower=3.0),
    "shares .7 / .1 / .1 / .1, g1 5 times as slow": ServedLoadedServers(shares=UNEVEN, slower=5.0),
    "shares .2 / .4 / .2 / .2, g1 5 times as slow": ServedLoadedServers(
        shares=(0.2, 0.4, 0.2, 0.2), slower=5.0
    ),
}
ROUNDS, FOUND_ROUNDS = 400, 100


def tables():
    """Return the table of levels, and that of power."""
    lines = [
        "| healthy servers | any called slow, all answers compared | like with like (95 %) | any"
        " called more loaded |",
        "|---|---|---|---|",
    ]
    for name, setting in HEALTHY.items():
        random = numpy.random.default_rng(len(lines))
        told = [serve(random, setting) for _ in range(ROUNDS)]
        rows = [in_run(one) for one in told]
        before = sum(compare_all(one) for one in told)
        slow = sum(any(row.slow for row in one) for one in rows)
        loaded = sum(any(row.loaded for row in one) for one in rows)
        low, high = interval(slow, ROUNDS)
        lines.append(
            f"| {name} | {100 * before / ROUNDS:.3g} | {100 * slow / ROUNDS:.3g} ({100 * low:.2g}"
            f" to {100 * high:.2g}) | {100 * loaded / ROUNDS:.3g} |"
        )
    lines += ["", "| one slow server | g1 called slow | another called slow |", "|---|---|---|"]
    for name, setting in SLOW.items():
        random = numpy.random.default_rng(len(lines))
        named = [
            {row.worker for row in in_run(serve(random, setting)) if row.slow}
            for _ in range(FOUND_ROUNDS)
        ]
        right, wrong = (sum(map(holds, named)) for holds in (_has_g1, _has_another))
        lines.append(
            f"| {name} | {100 * right / FOUND_ROUNDS:.3g} | {100 * wrong / FOUND_ROUNDS:.3g} |"
        )
    return "\n".join(lines)


def compare_all(answers):
    """Return whether a server is called slow if all answers are compared, whatever their load."""
    rows = []
    for name in sorted({one.generation for one in answers if one.generation is not None}):
        usual = usual_time([one for one in answers if one.generation != name])
        own = [(one, usual) for one in answers if one.generation == name]
        rows.append(make_row(name, "generation", own))
    return any(row.slow for row in correct_rows(rows))


def _has_g1(named):
    return "g1" in named


def _has_another(named):
    return bool(named - {"g1"})


def main():
    print(tables())


if __name__ == "__main__":
    main()
