"""Count what diagnose says of healthy runs of a real model: `python -m` this module prints it.

The embedded model answers each prompt in 30 real runs at temperature 1. A healthy run then has
for each prompt the answer of one of them, drawn at random, and the times of one whole run. The
reference is registered from all of them. About 8 minutes.
"""

import asyncio
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.workflows.diagnose.evidence import read
from serve_eval.workflows.diagnose.run_rules import TESTS, findings
from serve_eval.workflows.references import register

RUNS, PROMPTS, TRIALS, SEED = 30, 300, 1000, 5
TASK = "word_problems"


def make_plan(references, *, max_tokens):
    options = {"num_samples": PROMPTS, "temperature": 1.0, "max_tokens": max_tokens}
    return Plan(
        model="embedded",
        launcher=Spec(name="embedded", options={}),
        tasks=(Spec(name=TASK, options=options),),
        references_dir=None if references is None else str(references),
        no_reference=references is None,
        limits=Limits(concurrency=16),
    )


def ask_runs(folder, runs, max_tokens):
    """Run the task again and again, and return the folders."""
    found = []
    for number in range(runs):
        plan = make_plan(None, max_tokens=max_tokens)
        limits = replace(plan.limits, order_seed=number)
        out = folder / f"run{number}"
        asyncio.run(evaluate(replace(plan, limits=limits), out, environ={}))
        found.append(out)
    return found


def draw_run(runs, out, rng):
    """Write a run folder with the times of one run and answers of all."""
    base = rng.choice(runs)
    shutil.copytree(base, out)
    answers = [_lines(one / f"samples/{TASK}.jsonl") for one in runs]
    drawn = []
    for name, own in _lines(base / f"samples/{TASK}.jsonl").items():
        line = json.loads(json.dumps(rng.choice(answers)[name]))
        line["response"]["attempts"] = own["response"]["attempts"]
        drawn.append(json.dumps(line))
    (out / f"samples/{TASK}.jsonl").write_text("\n".join(drawn) + "\n")
    (out / f"scores/{TASK}.jsonl").unlink()


def _lines(file):
    return {line["id"]: line for line in map(json.loads, file.read_text().splitlines())}


def run_trials(runs, references, folder, trials):
    """Print what diagnose says of the drawn runs."""
    outcomes, said, tested = Counter[str](), Counter[str](), 0
    for trial in range(trials):
        rng = random.Random(f"{SEED}:{trial}")
        out = folder / f"trial{trial}"
        draw_run(runs, out, rng)
        saved = read(out).plan
        plan = replace(saved, references_dir=str(references), no_reference=False)
        report = judge_again(plan, out)
        evidence = read(out)
        tasks = tuple(replace(one, report=report.tasks[0]) for one in evidence.tasks)
        found = findings(replace(evidence, report=report, tasks=tasks))
        outcome = report.tasks[0].verdict.outcome.value
        outcomes[outcome] += 1
        said.update({f"{one.rule} ({outcome})" for one in found})
        tested += any(one.rule in TESTS for one in found)
        shutil.rmtree(out)
    print(f"{trials} healthy runs of {PROMPTS} prompts: {dict(outcomes)}")
    print(f"accused by a test: {tested}; findings: {dict(said.most_common())}")


def main():
    """Ask the runs, register the reference, and print the trials. Arguments: RUNS TRIALS."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    trials = int(sys.argv[2]) if len(sys.argv) > 2 else TRIALS
    for max_tokens in (256, 24):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            asked = ask_runs(folder, runs, max_tokens)
            register(asked, folder / "references")
            print(f"max_tokens {max_tokens}:", end=" ")
            run_trials(asked, folder / "references", folder, trials)


if __name__ == "__main__":
    main()
