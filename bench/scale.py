"""Measure one client process, and simulate it before the answers of 100 and 1,000 GPUs.

Run `python bench/scale.py`, ten minutes on two cores; `--quick` tries it out. `--save FILE` keeps
the measurements, and `--costs FILE` uses them again with other assumptions, in a minute:
`--answers-per-gpu medium=80` replaces a rate. docs/measured/scale.md holds the output.

Costs are CPU times of `serve-eval run`, which other work on the machine changes least. Delays are
those of a queue: one process takes one answer after another (bench/queueing.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from check import compare, compare_all
from costs import Costs, measure_costs, measure_little
from fleet import MODELS, SAMPLES, Assumptions, Model
from kinds import KINDS, MEDIUM
from machine import facts, load
from scale_tables import (
    format_assumptions,
    format_by_load,
    format_checks,
    format_costs,
    format_lengths,
    format_levels,
    format_loads,
)

ANSWERS = 200_000
"""Answers of a simulated load."""


def main() -> None:
    given = _arguments()
    assumed = Assumptions(
        server_gpus=given.server_gpus,
        step_s=given.step_ms / 1000,
        given=_rates(given.answers_per_gpu),
    )
    print(*(_facts()), f"load average {load()} before", sep="\n")
    if given.costs is not None:
        costs = Costs.load(given.costs)
    else:
        costs = measure_little() if given.quick else measure_costs(given.rounds, _tell)
    if given.save is not None:
        costs.save(given.save)
    models = MODELS[:1] if given.quick else MODELS
    count, most = (5_000, 5_000) if given.quick else (ANSWERS, given.most_samples)
    for text in _simulated(costs, assumed, models, count, most):
        print("\n" + text, flush=True)
    if given.quick:
        checks = [compare(costs.kinds[0], 0.5, 0.0, tries=1, in_flight=8, n=60)]
    elif given.tries:
        checks = compare_all(costs.of(MEDIUM.name), given.tries, _tell)
    else:
        return
    print("\n" + format_checks(checks), f"\nload average {load()} behind", sep="\n")


def _simulated(
    costs: Costs, assumed: Assumptions, models: Sequence[Model], count: int, most: int
) -> list[str]:
    """Return every table but the check."""
    tables = [format_costs(costs), format_levels(costs), format_assumptions(costs, assumed, models)]
    tables.append(format_by_load(costs.kinds[:2][-1], assumed, count))
    tables += [format_loads(costs, assumed, model, count) for model in models]
    return tables + [format_lengths(costs, assumed, model, most) for model in models]


def _facts() -> list[str]:
    """Return the cores and the Python."""
    return [line.partition(",")[0] for line in facts()]


def _rates(given: Sequence[str]) -> dict[str, float]:
    """Return the rates that replace assumed ones, by kind."""
    names = [kind.name for kind in KINDS]
    rates = {}
    for one in given:
        name, _, rate = one.rpartition("=")
        if name not in names:
            sys.exit(f"{name or one}: not one of {'; '.join(names)}")
        rates[name] = float(rate)
    return rates


def _tell(text: str) -> None:
    print(f"\r\033[K{text}", end="\n" if not sys.stderr.isatty() else "", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one kind, few samples: does it work?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tries", type=int, default=8, help="of each check; 0: no checks")
    parser.add_argument("--save", type=Path, help="write the measurements here")
    parser.add_argument("--costs", type=Path, help="read them from here instead of measuring")
    parser.add_argument(
        "--answers-per-gpu", action="append", default=[], metavar="KIND=RATE", help="per second"
    )
    parser.add_argument("--server-gpus", type=int, default=8, help="GPUs that make steps together")
    parser.add_argument("--step-ms", type=float, default=30, help="time of a decode step")
    parser.add_argument("--most-samples", type=int, default=SAMPLES[-1], help="of an evaluation")
    return parser.parse_args()


if __name__ == "__main__":
    main()
