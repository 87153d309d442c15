"""Compare the embedded model with itself and with damaged weights, on recorded requests.

    python -m tests.recorded.pair_trials LOG.jsonl [FIRST] [SOUND] [DAMAGED] [MANY] [FEW]

LOG is a file of tests.recorded.make_requests. One server has the model under several names: the
sound pairs, numbered from FIRST, are two names of the same weights, asked FEW requests each, half
of them with the recorded sampling and half at temperature .8 without a seed. Pairs with the DAMAGED
weights, such as int4,int3, are asked MANY.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.plan.resolve import resolve
from serve_eval.schema import Spec
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from tests.scripted_server import serve_in_thread

SOUND_REQUESTS, DAMAGED_REQUESTS = 60, 100
MODELS = {"embedded": "none", "twin": "none", "int8": "int8", "int4": "int4-g32", "int3": "int3"}


def choose_lines(log, count, seed, folder):
    """Write a random part of a log, in its order, and return the file."""
    lines = Path(log).read_text().splitlines(keepends=True)
    chosen = sorted(random.Random(seed).sample(range(len(lines)), min(count, len(lines))))
    file = Path(folder) / f"part-{seed}.jsonl"
    file.write_text("".join(lines[place] for place in chosen))
    return file


def compare_pair(url, model, file, folder, temperature=None):
    """Return the comparison of two names of one server, A being the sound one."""
    options = {} if temperature is None else {"choices": {"temperature": temperature}}
    given = {"requests": str(file), "base_url": url, "concurrency": 8, "server_defaults": "keep"}
    sides = [
        CompareSide(resolve({}, {**given, **options, "model": name}, {}).plan)
        for name in ("embedded", model)
    ]
    rules = CompareRules(Spec(name="paired"))
    return asyncio.run(compare(*sides, rules, Path(folder) / "out"))


def describe(number, model, temperature, found, took_s):
    """Return a row of a table."""
    [task] = found.tasks
    counts = ", ".join(
        f"{one.name} {one.other / one.other_pairs:.1%} ({one.own / one.own_pairs:.1%})"
        for one in task.changed.measures
    )
    drawn = "as recorded" if temperature is None else f"{temperature:g}"
    return (
        f"| {number} | {model} | {drawn} | {task.changed.requests} | {counts} |"
        f" {task.changed.p:.4f} | {task.verdict.outcome} | {took_s:.0f} s |"
    )


def main(log, first=1, sound=20, damaged="int4", many=DAMAGED_REQUESTS, few=SOUND_REQUESTS):
    jobs = [
        (number, "twin", few, None if number % 2 else 0.8) for number in range(first, first + sound)
    ]
    jobs += [(name, name, many, None) for name in damaged.split(",") if name]
    print("| pair | B | temperature | requests | differ (A from itself) | p | verdict | time |")
    print("|---|---|---|---|---|---|---|---|")
    accused = 0
    with serve_in_thread(create_app(WEIGHTS, MODELS)) as url:
        for number, model, count, temperature in jobs:
            with tempfile.TemporaryDirectory() as folder:
                file = choose_lines(log, count, number, folder)
                began = time.monotonic()
                found = compare_pair(url, model, file, folder, temperature)
                took_s = time.monotonic() - began
            accused += model == "twin" and found.tasks[0].verdict.outcome == "FAIL"
            print(describe(number, model, temperature, found, took_s), flush=True)
    print(f"accused: {accused} of {sound} sound pairs")


if __name__ == "__main__":
    arguments = [int(one) if one.isdigit() else one for one in sys.argv[2:]]
    main(sys.argv[1], *arguments)
