"""Measure how often healthy workers are accused and the bad one is named, as Markdown tables.

Part of `make calibrate`; seeded, printed, never asserted.
"""

from dataclasses import replace

import numpy

from serve_eval.evidence.attribution.latency import (
    Timed,
    correct_rows,
    in_run,
    make_row,
    usual_time,
)
from serve_eval.stats.contingency import Cell, rows
from tests.stats.simulation import ALPHA as STICKY_ALPHA
from tests.stats.simulation import (
    Routed,
    ServedLoadedServers,
    Setting,
    accused,
    interval,
    played,
    serve,
)

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
LOADED_ROUNDS, FOUND_ROUNDS = 400, 100


def tables_loaded():
    """Return the table of levels, and that of power."""
    lines = [
        "| healthy servers | any called slow, all answers compared | like with like (95 %) | any"
        " called more loaded |",
        "|---|---|---|---|",
    ]
    for name, setting in HEALTHY.items():
        random = numpy.random.default_rng(len(lines))
        told = [serve(random, setting) for _ in range(LOADED_ROUNDS)]
        rows = [in_run(one) for one in told]
        before = sum(compare_all(one) for one in told)
        slow = sum(any(row.slow for row in one) for one in rows)
        loaded = sum(any(row.loaded for row in one) for one in rows)
        low, high = interval(slow, LOADED_ROUNDS)
        lines.append(
            f"| {name} | {100 * before / LOADED_ROUNDS:.3g} | {100 * slow / LOADED_ROUNDS:.3g}"
            f" ({100 * low:.2g} to {100 * high:.2g}) | {100 * loaded / LOADED_ROUNDS:.3g} |"
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


def main_loaded():
    print(tables_loaded())


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
REPEATED_ROUNDS, REPEATED_FOUND_ROUNDS = 300, 50
REPEATED_WORSE = 0.3


def tables_repeated():
    """Return the table of levels, and of power against one bad server."""
    lines = [
        (
            "| requests go to servers | repeats | healthy accused, answers permuted | prompts"
            f" permuted (95 %) | +{REPEATED_WORSE:.0%} named, prompts permuted | another named |"
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
    healthy = [accused(random, routed) for _ in range(REPEATED_ROUNDS)]
    before, now = (sum(bool(one[i]) for one in healthy) for i in (0, 1))
    low, high = interval(now, REPEATED_ROUNDS)
    found = [accused(random, routed, worse=REPEATED_WORSE)[1] for _ in range(REPEATED_FOUND_ROUNDS)]
    named = sum("g1" in one for one in found)
    others = sum(bool(one - {"g1"}) for one in found)
    return (
        f"{100 * before / REPEATED_ROUNDS:.3g} | {100 * now / REPEATED_ROUNDS:.3g}"
        f" ({100 * low:.2g} to {100 * high:.2g}) | {100 * named / REPEATED_FOUND_ROUNDS:.3g}"
        f" | {100 * others / REPEATED_FOUND_ROUNDS:.3g}"
    )


def main_repeated():
    print(tables_repeated())


STICKY = (0.0, 0.3, 1.0)
KNOWN = {
    "nothing": Setting(),
    "the subject": Setting(subject=True),
    "one run": Setting(runs=1),
    "three runs": Setting(runs=3),
    "three runs and the subject": Setting(runs=3, subject=True),
}
"""Facts known about the prompts; runs are those of a reference."""
STICKY_WORSE = (0.1, 0.2)
STICKY_ROUNDS, STICKY_FOUND_ROUNDS = {400: 800, 1319: 200}, 100
"""Healthy rounds by the number of answers, and rounds with a bad server (400 answers only)."""


def tables_sticky():
    """Return the table; a cell beyond the level names the reason."""
    named = " | ".join(f"+{by:.0%} named, before / now" for by in STICKY_WORSE)
    lines = [
        (
            "| answers | stuck to servers by subject | known | anybody healthy accused, before |"
            f" now (95 %) | {named} |"
        ),
        "|---" * (5 + len(STICKY_WORSE)) + "|",
    ]
    for answers, sticky, name in [
        *((400, sticky, name) for sticky in STICKY for name in KNOWN),
        *(
            (1319, sticky, name)
            for sticky in STICKY[1:]
            for name in ("nothing", "one run", "three runs")
        ),
    ]:
        random = numpy.random.default_rng([answers, round(100 * sticky)])
        told = [
            played(random, sticky, KNOWN[name], answers=answers)
            for _ in range(STICKY_ROUNDS[answers])
        ]
        cells = [_percent(told, lambda one: bool(one.before))[0], _level(told, name)]
        for by in STICKY_WORSE if answers == 400 else ():
            found = [
                played(random, sticky, KNOWN[name], worse=by) for _ in range(STICKY_FOUND_ROUNDS)
            ]
            before, now = (
                _percent(found, holds)[0]
                for holds in (lambda one: "g1" in one.before, _named_sticky)
            )
            cells.append(f"{before} / {now}")
        cells += ["-"] * (2 + len(STICKY_WORSE) - len(cells))
        lines.append(f"| {answers} | {sticky:.0%} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _named_sticky(one):
    return "g1" in one.now


def _percent(told, holds):
    hits = sum(map(holds, told))
    return f"{100 * hits / len(told):.3g}", hits


def _level(told, name):
    shown, hits = _percent(told, lambda one: bool(one.now))
    low, high = interval(hits, len(told))
    cell = f"{shown} ({100 * low:.2g} to {100 * high:.2g})"
    if low <= STICKY_ALPHA:
        return cell
    why = (
        "no data on which prompts are hard"
        if name == "nothing"
        else "one run does not tell which prompts are unsteady"
    )
    return f"**{cell}**: {why}"


def main_sticky():
    print(tables_sticky())
