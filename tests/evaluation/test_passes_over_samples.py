"""A run passes over its samples a few times: a task may make each of them when it is looked up.

All of them nine times, and the first 2,000 once more for texts that prompts share.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Limits, Plan, Spec
from tests.scripted_server import ScriptedServer, answer

TASK = """
from collections.abc import Sequence
from pathlib import Path

from serve_eval.schema import (
    Dataset, Hypothesis, Metric, Outcome, Sample, SamplingParams, Score, Task
)


class Made(Sequence):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        if not 0 <= i < 40:
            raise IndexError(i)
        if i == 7:
            with Path({log!r}).open("a") as log:
                log.write(".")
        return Sample(id=f"s{{i}}", prompt=f"question {{i}}", target="A")


def task() -> Task:
    return Task(
        name="made",
        version=1,
        reference_file="made",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=40),
        sampling=SamplingParams(max_tokens=4),
        protocol={{}},
        load=lambda roots, wanted: Dataset(samples=Made(), files=(), total=40),
        score=lambda sample, response: Score(value=1.0, outcome=Outcome.CORRECT),
        scoring="inline",
        answers=lambda sample: ("A", "B"),
    )
"""


def test_a_run_looks_each_sample_up_a_few_times(tmp_path: Path) -> None:
    log, folder = tmp_path / "log", tmp_path / "mine" / "tasks"
    folder.mkdir(parents=True)
    (folder / "made.py").write_text(TASK.format(log=str(log)))

    async def main() -> None:
        async with ScriptedServer([answer("A")]).serve() as url:
            plan = Plan(
                model="m",
                tasks=(Spec(name="made"),),
                launcher=Spec(name="external", options={"base_url": url}),
                include_path=(str(tmp_path / "mine"),),
                no_reference=True,
                limits=Limits(concurrency=4),
            )
            report = await evaluate(plan, tmp_path / "run", environ={})
            assert report.tasks[0].result.scored == 40

    asyncio.run(main())
    assert 1 <= len(log.read_text()) <= 10
