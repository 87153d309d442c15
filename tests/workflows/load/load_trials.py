"""Trials of `check load`: what is found and named, and how often a sound server is accused.

`python -m tests.workflows.load.load_trials` prints the table of docs/measured/check-load.md. `NAME`
after it tries only the servers whose names contain it.
"""

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from serve_eval.workflows.load.story import measure_load
from tests.workflows.load.batch_server import BatchServer, Damage, draw, plan_of, targets_of

LOADS = (1, 4, 16, 64)
PROMPTS = 200
TRIALS, SOUND_TRIALS = 20, 100


def _always(met):
    return lambda _prompt, load, _before: met(load)


def _tenth(prompt, load, before):
    return load >= 16 and draw(prompt, "tenth") < 0.1


def _late(prompt, load, before):
    return before >= 2.5 * PROMPTS


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of server: its name, what should be said of it, and how it is made and asked."""

    name: str
    words: str
    trials: int = TRIALS
    damage: Damage = lambda prompt, load, before: False
    numerics: float = 0.0
    bisect: bool = False


CASES = (
    Case(name="wrong from 16 on", words="broken from 16 on", damage=_always(lambda n: n >= 16)),
    Case(name="wrong at exactly 16", words="broken only at 16", damage=_always(lambda n: n == 16)),
    Case(name="10 % wrong from 16 on", words="broken from 16 on", damage=_tenth),
    Case(
        name="10 % wrong from 16 on, numerics change",
        words="broken from 16 on",
        damage=_tenth,
        numerics=0.05,
    ),
    Case(
        name="wrong from 5 on, --bisect",
        words="broken from 5 on",
        damage=_always(lambda n: n >= 5),
        bisect=True,
    ),
    Case(name="10 % wrong from 16 on, --bisect", words="", damage=_tenth, bisect=True),
    Case(name="wrong from a time on", words="changed over time", damage=_late),
    Case(name="sound", words="", trials=SOUND_TRIALS),
    Case(name="sound, numerics change", words="", trials=SOUND_TRIALS, numerics=0.2),
)


async def try_case(case, seed, targets, out):
    """Return the result of one trial."""
    server = BatchServer(
        targets=targets, seed=seed, damage=case.damage, numerics=case.numerics
    ).server()
    async with server.serve() as url:
        plan = plan_of(url, PROMPTS)
        return await measure_load(plan, out, LOADS, bisect=case.bisect, environ={})


def is_named(case, found):
    """Return True if the right load is named."""
    [task] = found.tasks
    if not case.bisect:
        return task.words.startswith(case.words) and "not decided" not in task.words
    bracket, first = found.bracket, 5 if case.words else 16
    return bracket is not None and (bracket.good, bracket.bad) == (first - 1, first)


async def main():
    """Print a row for each server."""
    targets = targets_of(PROMPTS)
    print("server | found | named | requests | seconds", flush=True)
    for case in CASES:
        if not all(part in case.name for part in sys.argv[1:]):
            continue
        results = []
        for seed in range(case.trials):
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                found = await try_case(case, seed, targets, Path(folder) / "out")
                results.append((found, time.perf_counter() - began))
        accused = sum(found.exit_code == 1 for found, _ in results)
        if case.words == "changed over time":
            accused = sum(found.exit_code == 3 for found, _ in results)
        sound = case.name.startswith("sound")
        named = "-" if sound else f"{sum(is_named(case, one) for one, _ in results)}"
        requests = sorted(found.requests for found, _ in results)
        spread = f"{requests[0]}" if requests[0] == requests[-1] else f"{median(requests):g}"
        seconds = median(took for _, took in results)
        print(
            f"{case.name} | {accused} of {case.trials} | {named} | {spread} | {seconds:.1f}",
            flush=True,
        )
        others = {one.tasks[0].words for one, _ in results if not is_named(case, one)}
        for words in () if sound else sorted(others)[:3]:
            print(f"    {words}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
