"""Count how often a bisection names the quantisation among six options of a real vLLM.

`python -m tests.vllm.bisect_trials FILE` adds a line to FILE after each trial and prints a table of
all. It goes on where FILE ends; `--minutes M` begins no trial later than that.

The bad plan has other weights, larger blocks, no prefix cache, speculation, prompts in chunks, and
a shorter limit. Its weights are of three bits, or in W8A8, which loses nothing that 200 problems
show.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.plugins.scope import scope
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.workflows.bisect.changes import list_changes
from serve_eval.workflows.bisect.configurations import Configurations, between_plans
from tests.vllm.deployments import MODEL, Deployments, aggregated
from tests.vllm.quantise import write_model
from tests.workflows.bisect.trial import HEADER, Outcome, tell_case, try_both

TRIALS, SAMPLES = 20, 200
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
CASES = {"int3": ("launcher.model",), "w8a8": ()}
"""The culprits of each case, by the weights of the bad plan."""


class Tried(msgspec.Struct):
    """A trial as a line of the file."""

    case: str
    both: tuple[Outcome, Outcome]


def build(command: Sequence[str], weights: Path, seed: int) -> Configurations:
    """Return the search of a trial; the seed puts the options and the prompts in another order."""
    good = aggregated(command=[*command])
    arguments = good.options["extra_args"]
    changed: dict[str, Any] = {
        "model": str(weights),
        "block_size": 64,
        "prefix_caching": False,
        "speculative": NGRAM,
        "extra_args": [*arguments, "--enable-chunked-prefill", "--max-num-batched-tokens", "128"],
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
    return between_plans(plan, list_changes(plan, replace(plan, launcher=bad)))


def run(file: Path, trials: int, until_s: float, cases: Sequence[str]) -> None:
    """Run the trials that the file lacks."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        weights = {case: write_model(case, folder / case) for case in CASES}
        running = Deployments(folder)
        try:
            running.wait_until_warm()
            for case in cases:
                while (seed := count(file, case)) < trials and time.monotonic() < until_s:
                    found = build(running.command, weights[case], seed)
                    with tempfile.TemporaryDirectory() as out, scope():
                        both = asyncio.run(try_both(found, CASES[case], Path(out)))
                    with file.open("ab") as lines:
                        lines.write(msgspec.json.encode(Tried(case, both)) + b"\n")
        finally:
            running.close()


def read(file: Path) -> list[Tried]:
    """Return the trials so far."""
    return msgspec.json.Decoder(Tried).decode_lines(file.read_bytes()) if file.exists() else []


def count(file: Path, case: str) -> int:
    """Return the number of trials of a case so far."""
    return sum(one.case == case for one in read(file))


def main() -> None:
    """Run the trials and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--cases", nargs="*", choices=CASES, default=[*CASES])
    given = parser.parse_args()
    run(given.file, given.trials, time.monotonic() + 60 * given.minutes, given.cases)
    print(HEADER)
    for case in CASES:
        if tried := [one.both for one in read(given.file) if one.case == case]:
            print(tell_case(case, tried))


if __name__ == "__main__":
    main()
