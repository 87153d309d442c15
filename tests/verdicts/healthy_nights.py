"""Count what healthy nights of one task and of eight say: `python -m` this module prints it.

The simulated endpoint answers 100 made-up sums a task. The reference has three runs, and a night
is one more run of the same endpoint, judged by the default rule and diagnosed. Counted are nights
with a FAIL, with a warning that a test gave, and with a cause. About four minutes.
"""

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers import simulated
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.workflows.diagnose.story import diagnose
from serve_eval.workflows.references import register
from tests.server_here import server_here
from tests.stats.calibrate_paired import share

PROMPTS, FLIP_RATE, ACCURACY = 100, 0.15, 0.7
NIGHTS = {1: 300, 8: 100}
"""Number of nights by number of tasks."""
BY_DESIGN = ("other_launch", "too_few_samples")
"""Rules of diagnose that are true here: each run is launched with another number."""
BY_TEST = ("small_drop", "rules_disagree", "run_effect", "degrading", "slow_worker", "repaired")
"""Beginnings of the warnings that a test or a bound gives."""


def write_cases(folder, tasks):
    """Write a case file of sums for each task."""
    rng = random.Random(1)
    for task in range(tasks):
        lines = [f"t{task}:", "  scorer: numeric", "  cases:"]
        for number in range(PROMPTS):
            a, b = rng.randint(1, 9999), rng.randint(1, 9999)
            asked = f"{{prompt: 'What is {a} plus {b}?'}}"
            lines.append(f"    - {{case: c{number}, input: {asked}, expected: '{a + b}'}}")
        (folder / f"t{task}.yaml").write_text("\n".join(lines) + "\n")


def make_plan(folder, tasks, run, references):
    options = {"accuracy": ACCURACY, "flip_rate": FLIP_RATE, "seed": 3, "run": run}
    return Plan(
        model="org/m",
        launcher=Spec(name="simulated", options=options),
        tasks=tuple(
            Spec(name=f"cases:t{i}", options={"path": str(folder / f"t{i}.yaml")})
            for i in range(tasks)
        ),
        no_reference=references is None,
        references_dir=None if references is None else str(references),
        limits=Limits(concurrency=32),
    )


def list_warnings(report):
    """Return the kinds of warnings that a test gave."""
    told = (line for task in report.tasks for line in task.verdict.warnings)
    return {kind for line in told for kind in BY_TEST if line.startswith(kind)}


def count_nights(tasks, nights):
    """Print how many nights failed, warned and had a cause."""
    found = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cases(folder, tasks)
        runs = [folder / f"r{number}" for number in range(3)]
        for number, run in enumerate(runs):
            asyncio.run(evaluate(make_plan(folder, tasks, 1000 + number, None), run, environ={}))
        register(runs, folder / "references")
        for night in range(nights):
            plan = make_plan(folder, tasks, night, folder / "references")
            report = asyncio.run(evaluate(plan, folder / "night", environ={}))
            told = diagnose(folder / "night")
            causes = {one.rule for run in told.runs for one in run.findings} - {*BY_DESIGN}
            warned = list_warnings(report)
            outcomes = {task.verdict.outcome.value for task in report.tasks}
            found["FAIL"] += "FAIL" in outcomes
            found["INCONCLUSIVE"] += "INCONCLUSIVE" in outcomes
            found["a warning"] += bool(warned)
            found["a cause"] += bool(causes)
            found["a warning or a cause"] += bool(warned or causes)
            shutil.rmtree(folder / "night")
    said = ", ".join(f"{what} {share(count, nights)}" for what, count in sorted(found.items()))
    print(f"{nights} healthy nights of {tasks} tasks, in %: {said}", flush=True)


def main():
    simulated.own_server = server_here
    for tasks, nights in NIGHTS.items():
        count_nights(tasks, nights)


if __name__ == "__main__":
    main()
