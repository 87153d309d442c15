"""Count how often a bisection names the quantisation among six options of a real vLLM.

`python -m tests.vllm.bisect_trials FILE` adds a line to FILE after each trial and prints a table of
all. It goes on where FILE ends; `--minutes M` begins no trial later than that.

The bad plan has other weights, larger blocks, no prefix cache, prompts in chunks, a shorter limit,
and more requests at once. Its weights are of three bits, or in W8A8, which loses nothing that 200
problems show. Speculation is left out, since it takes three times as long on a CPU, and so is the
plain bisection.
"""

import argparse
import asyncio
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from serve_eval.plugins.scope import scope
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.workflows.bisect.configurations import between_plans, list_changes
from tests.vllm.deployments import MODEL, Deployments, aggregated, write_model
from tests.workflows.bisect.searches import OURS, TrialFile, search, tell_case

TRIALS, SAMPLES = 20, 200
CASES = {"int3": ("launcher.model",), "w8a8": ()}
"""The culprits of each case, by the weights of the bad plan."""


def build(command, weights, seed):
    """Return the search of a trial; the seed puts the options and the prompts in another order."""
    good = aggregated(command=[*command])
    arguments = good.options["extra_args"]
    changed = {
        "model": str(weights),
        "block_size": 64,
        "prefix_caching": False,
        "extra_args": [*arguments, "--max-num-batched-tokens", "128"],
        "max_model_len": 448,
    }
    names = random.Random(f"order:{seed}").sample([*changed], len(changed))
    first = {name: good.options[name] for name in names if name in good.options}
    plan = Plan(
        model=MODEL,
        launcher=Spec(name=good.name, options={**first, **good.options}),
        tasks=(Spec(name="word_problems", options={"num_samples": SAMPLES}),),
        limits=Limits(concurrency=16, order_seed=seed),
    )
    bad = Spec(
        name=good.name, options={**plan.launcher.options, **{name: changed[name] for name in names}}
    )
    other = replace(plan, launcher=bad, limits=replace(plan.limits, concurrency=24))
    return between_plans(plan, list_changes(plan, other))


def run(trials, wanted, until_s, cases):
    """Run the trials that the file lacks, in turn of the cases."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        weights = {case: write_model(case, folder / case) for case in CASES}
        running = Deployments(folder)
        try:
            running.wait_until_warm()
            while time.monotonic() < until_s:
                seed, case = min((len(trials.read(case)), case) for case in cases)
                if seed >= wanted:
                    return
                found = build(running.command, weights[case], seed)
                with tempfile.TemporaryDirectory() as out, scope():
                    ours = asyncio.run(search(found, CASES[case], None, Path(out)))
                trials.add(case, (ours,))
        finally:
            running.close()


def main():
    """Run the trials and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--cases", nargs="*", choices=CASES, default=[*CASES])
    given = parser.parse_args()
    trials = TrialFile(given.file)
    run(trials, given.trials, time.monotonic() + 60 * given.minutes, given.cases)
    print(OURS)
    for case in CASES:
        if tried := trials.read(case):
            print(tell_case(case, tried))


if __name__ == "__main__":
    main()
