"""Count how often a bisection names the culprit, and what it costs, against a plain bisection.

`python -m tests.workflows.bisect.bisect_trials` prints a table of 20 trials per case with simulated
servers, whose answers differ between two starts on 6 % of the prompts. `--trials N` sets the
number, `--embedded` starts the embedded model in processes of its own, and further words name the
cases.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launchers import embedded
from launchers._embedded.damage import Damage
from serve_eval.plugins.scope import scope
from serve_eval.schema import LaunchContext
from serve_eval.workflows.bisect.configurations import Configurations
from tests.workflows.bisect.breaking import OPTIONS, STEPS, build_options, build_steps
from tests.workflows.bisect.trial import HEADER, tell_case, try_both

TRIALS, SAMPLES, SAMPLES_EMBEDDED = 20, 500, 200
BITS: Damage = "int3"


@dataclass(frozen=True)
class Case:
    """A kind of breakage: the number of culprits, the share of right answers that is lost."""

    name: str
    culprits: int = 1
    ordered: bool = False
    damage: float = 0.25
    margin: float | None = None


CASES = (
    Case("one of 6 options"),
    Case("two of 6 together", culprits=2),
    Case("a step of 16", ordered=True),
    Case("nothing, 6 options", culprits=0),
    Case("one of 6, drop 4", damage=0.05),
    Case("a step of 16, drop 4", ordered=True, damage=0.05),
    Case("one of 6, drop = margin 4", damage=0.05, margin=4.0),
)


def build(case: Case, seed: int, running: str) -> tuple[Configurations, tuple[str, ...]]:
    """Return the search of a trial and the names of its culprits."""
    drawing = random.Random(f"{case.name}:{seed}")
    more: dict[str, Any] = {
        "damage": case.damage,
        "order_seed": drawing.randrange(10**6),
        "samples": SAMPLES_EMBEDDED if running else SAMPLES,
        **({"bits": BITS, "running": running} if running else {"flip_rate": 0.06}),
    }
    if case.ordered:
        first = drawing.randrange(1, len(STEPS))
        return build_steps(first, **more), (STEPS[first],)
    culprits = tuple(sorted(drawing.sample(OPTIONS, case.culprits), key=OPTIONS.index))
    return build_options(culprits, **more), tuple(f"served.{name}" for name in culprits)


async def run_case(case: Case, trials: int, running: str) -> str:
    """Return a line of the table."""
    tried = []
    for seed in range(trials):
        found, truth = build(case, seed, running)
        with tempfile.TemporaryDirectory() as out, scope():
            both = try_both(found, truth, Path(out), margin=case.margin, reuse=bool(running))
            tried.append(await both)
    return tell_case(case.name, tried)


async def print_table(trials: int, names: Sequence[str], running: str) -> None:
    """Print a line for each case; the names are beginnings of theirs."""
    print(HEADER)
    for case in CASES:
        if names and not case.name.startswith(tuple(names)):
            continue
        if running and case.damage != CASES[0].damage:
            continue
        print(await run_case(case, trials, running), flush=True)


async def print_embedded(trials: int, names: Sequence[str]) -> None:
    """Print the table with one process of the embedded model, intact and damaged."""
    options = embedded.EmbeddedOptions(also={BITS: BITS})
    with tempfile.TemporaryDirectory() as folder:
        context = LaunchContext(model="none", log_dir=Path(folder))
        async with embedded.launch(context, options) as endpoint:
            await print_table(trials, names, endpoint.base_url)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("cases", nargs="*", help="beginnings of the names of the cases")
    given = parser.parse_args(arguments)
    if given.embedded:
        asyncio.run(print_embedded(given.trials, given.cases))
    else:
        asyncio.run(print_table(given.trials, given.cases, ""))


if __name__ == "__main__":
    main()
