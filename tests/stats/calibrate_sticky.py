"""Measure how often attribution accuses healthy servers and names the bad one.

The router sends similar prompts to one server. The result is a Markdown table. Part of `make
calibrate`; seeded, printed, never asserted.
"""

import numpy

from tests.stats.simulation import ALPHA, Setting, interval, played

STICKY = (0.0, 0.3, 1.0)
KNOWN = {
    "nothing": Setting(),
    "the subject": Setting(subject=True),
    "one run": Setting(runs=1),
    "three runs": Setting(runs=3),
    "three runs and the subject": Setting(runs=3, subject=True),
}
"""Facts known about the prompts; runs are those of a reference."""
WORSE = (0.1, 0.2)
ROUNDS, FOUND_ROUNDS = {400: 800, 1319: 200}, 100
"""Healthy rounds by the number of answers, and rounds with a bad server (400 answers only)."""


def tables():
    """Return the table; a cell beyond the level names the reason."""
    named = " | ".join(f"+{by:.0%} named, before / now" for by in WORSE)
    lines = [
        (
            "| answers | stuck to servers by subject | known | anybody healthy accused, before |"
            f" now (95 %) | {named} |"
        ),
        "|---" * (5 + len(WORSE)) + "|",
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
            played(random, sticky, KNOWN[name], answers=answers) for _ in range(ROUNDS[answers])
        ]
        cells = [_percent(told, lambda one: bool(one.before))[0], _level(told, name)]
        for by in WORSE if answers == 400 else ():
            found = [played(random, sticky, KNOWN[name], worse=by) for _ in range(FOUND_ROUNDS)]
            before, now = (
                _percent(found, holds)[0] for holds in (lambda one: "g1" in one.before, _named)
            )
            cells.append(f"{before} / {now}")
        cells += ["-"] * (2 + len(WORSE) - len(cells))
        lines.append(f"| {answers} | {sticky:.0%} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _named(one):
    return "g1" in one.now


def _percent(told, holds):
    hits = sum(map(holds, told))
    return f"{100 * hits / len(told):.3g}", hits


def _level(told, name):
    shown, hits = _percent(told, lambda one: bool(one.now))
    low, high = interval(hits, len(told))
    cell = f"{shown} ({100 * low:.2g} to {100 * high:.2g})"
    if low <= ALPHA:
        return cell
    why = (
        "no data on which prompts are hard"
        if name == "nothing"
        else "one run does not tell which prompts are unsteady"
    )
    return f"**{cell}**: {why}"


def main():
    print(tables())


if __name__ == "__main__":
    main()
