"""Count how often a bisection names the culprit, and what it costs, against a plain bisection.

`python -m tests.workflows.bisect.bisect_trials` prints a table of 20 trials per case with simulated
servers, whose answers differ between two starts on 6 % of the prompts. `--trials N` sets the
number, and further words name the cases. `--embedded` asks the embedded model: one process serves
it intact and damaged, and stands for all servers. `--standin` starts the stand-in for trtllm-serve
with real options.
"""

import argparse
import asyncio
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serve_eval.launchers import embedded
from serve_eval.launchers._embedded.damage import Damage
from serve_eval.plugins.scope import scope
from serve_eval.schema import LaunchContext
from tests.workflows.bisect import searches
from tests.workflows.bisect.searches import (
    HEADER,
    OPTIONS,
    STEPS,
    TrialFile,
    build_options,
    build_steps,
    tell_case,
    try_both,
    two_gpus,
)

TRIALS, SAMPLES, SAMPLES_EMBEDDED = 20, 500, 200
BITS = "int3"
STANDIN_SAMPLES, STANDIN_DAMAGE = 300, 0.3


@dataclass(frozen=True)
class Case:
    """A kind of breakage: the number of culprits, the share of right answers that is lost.

    The embedded model has weights of fewer bits instead.
    """

    name: str
    culprits: int = 1
    ordered: bool = False
    damage: float = 0.25
    margin: float | None = None
    bits: Damage = BITS


CASES = (
    Case("one of 6 options"),
    Case("two of 6 together", culprits=2),
    Case("a step of 16", ordered=True),
    Case("nothing, 6 options", culprits=0),
    Case("one of 6, drop 4", damage=0.05),
    Case("a step of 16, drop 4", ordered=True, damage=0.05),
    Case("one of 6, drop = margin 4", damage=0.05, margin=4.0),
)
NEAR = "int4"
EMBEDDED_CASES = (
    *(case for case in CASES if case.damage == CASES[0].damage),
    Case("one of 6, four bits", bits=NEAR),
    Case("a step of 16, four bits", ordered=True, bits=NEAR),
)
"""The last ones lose some 3 points of 500 problems, about what the classic test detects."""


@dataclass(frozen=True)
class Given:
    """The arguments: `running` is the address of the embedded model."""

    trials: int
    names: tuple[str, ...]
    standin: bool
    file: TrialFile | None
    running: str = ""


def build(case, seed, running, standin):
    """Return the search of a trial and the names of its culprits.

    `standin` is the folder for a search with the stand-in.
    """
    drawing = random.Random(f"{case.name}:{seed}")
    more: dict[str, Any]
    if standin is not None:
        breaks = tuple(drawing.sample([*searches.BROKEN], case.culprits))
        order_seed = drawing.randrange(10**6)
        more = {"damage": STANDIN_DAMAGE, "flip_rate": 0.06, "order_seed": order_seed}
        return searches.build(standin, breaks, samples=STANDIN_SAMPLES, **more), breaks
    more = {
        "damage": case.damage,
        "order_seed": drawing.randrange(10**6),
        "samples": SAMPLES_EMBEDDED if running and case.bits == BITS else SAMPLES,
        **({"bits": case.bits, "running": running} if running else {"flip_rate": 0.06}),
    }
    if case.ordered:
        first = drawing.randrange(1, len(STEPS))
        return build_steps(first, **more), (STEPS[first],)
    culprits = tuple(sorted(drawing.sample(OPTIONS, case.culprits), key=OPTIONS.index))
    return build_options(culprits, **more), tuple(f"served.{name}" for name in culprits)


async def run_case(case, given):
    """Return a line of the table."""
    tried = given.file.read(case.name) if given.file else []
    for seed in range(len(tried), given.trials):
        with tempfile.TemporaryDirectory() as text, scope():
            out = Path(text)
            found, truth = build(case, seed, given.running, out if given.standin else None)
            reuse = given.standin or bool(given.running)
            tried.append(await try_both(found, truth, out, margin=case.margin, reuse=reuse))
        if given.file:
            given.file.add(case.name, tried[-1])
    return tell_case(case.name, tried)


async def print_table(given):
    """Print a line for each case."""
    print(HEADER)
    for case in EMBEDDED_CASES if given.running else CASES:
        if given.names and not case.name.startswith(given.names):
            continue
        if given.standin and case.damage != CASES[0].damage:
            continue
        if given.standin and case.ordered:
            continue
        print(await run_case(case, given), flush=True)


async def print_embedded(given):
    """Print the table with one process of the embedded model, intact and damaged."""
    options = embedded.EmbeddedOptions(also={BITS: BITS, NEAR: NEAR})
    with tempfile.TemporaryDirectory() as folder:
        context = LaunchContext(model="none", log_dir=Path(folder))
        async with embedded.launch(context, options) as endpoint:
            await print_table(replace(given, running=endpoint.base_url))


def main(arguments=None):
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--standin", action="store_true")
    parser.add_argument("--file", type=Path, help="trials so far: go on where it ends")
    parser.add_argument("cases", nargs="*", help="beginnings of the names of the cases")
    read = parser.parse_args(arguments)
    file = TrialFile(read.file) if read.file else None
    given = Given(read.trials, tuple(read.cases), read.standin, file)
    with tempfile.TemporaryDirectory() as folder, two_gpus(Path(folder)):
        asyncio.run(print_embedded(given) if read.embedded else print_table(given))


if __name__ == "__main__":
    main()
