"""Count how often the line about another model names a slice: `python -m` this module prints it.

The simulated endpoint is right on 70 or 75 % of the prompts, whatever they are, and is judged
against the reference of the embedded model. Seeded; `test_slices` asserts a part of it.
"""

import asyncio
import tempfile
from pathlib import Path

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.plan.resolve import resolve
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.diagnose.story import find_leads

PROMPTS, SEEDS = 100, range(20)
ACCURACIES = (0.7, 0.75)


def run_other_model(folder, accuracy, seed):
    """Return the report of a run of another model, and the likeliest cause that its line names."""
    plan = resolve(
        {
            "launcher": {"name": "simulated", "accuracy": accuracy, "seed": seed},
            "model": "embedded",
            "tasks": ["word_problems"],
            "limit": PROMPTS,
        },
        {},
        {},
    ).plan
    report = asyncio.run(evaluate(plan, folder))
    return report, find_leads(read_folder(folder)).causes.get("word_problems", "")


def main() -> None:
    """Print a row of the table in docs/measured/diagnose-slices.md."""
    named, runs = 0, len(ACCURACIES) * len(SEEDS)
    with tempfile.TemporaryDirectory() as scratch:
        for accuracy in ACCURACIES:
            for seed in SEEDS:
                _, cause = run_other_model(Path(scratch) / f"{accuracy}_{seed}", accuracy, seed)
                named += bool(cause)
    print(f"| `simulated` against the embedded model | {PROMPTS} | {named} of {runs} |")


if __name__ == "__main__":
    main()
