"""Define capitals whose answers other models judge.

It is a task for tests, found like a file in serve_eval/tasks.
"""

from __future__ import annotations

from typing import Any

from serve_eval.plugins import registry
from serve_eval.protocol.sampling_fields import canonical
from serve_eval.schema import (
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Sample,
    SamplingParams,
    Task,
)


def task(*, judge: dict[str, Any], count: int = 10):
    """Build `count` questions; `judge` holds the options of the scorer judge."""
    make = registry.load("serve_eval.scorers", "judge")
    scorer = make(**registry.check_options(make, judge, "scorer.judge"))

    def load(roots, wanted):
        samples = [
            Sample(
                id=str(i),
                prompt=(Message(role="user", content=f"What is the capital of country {i}?"),),
                target=canonical({"expected": f"Town {i}", "scorer": scorer.decisive}),
                metadata={"expected": f"Town {i}"},
            )
            for i in range(wanted)
        ]
        return Dataset(samples=samples, files=(), total=wanted)

    def score(sample, response):
        return scorer.score(sample.metadata["expected"], response)

    def questions(sample, response):
        return scorer.questions(sample, sample.metadata["expected"], response)

    return Task(
        name="capitals_judged",
        version=1,
        reference_file="capitals_judged",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=count),
        sampling=SamplingParams(max_tokens=32),
        protocol={},
        chat=True,
        load=load,
        score=score,
        answers=lambda sample: (sample.metadata["expected"], "I do not know."),
        questions=questions,
    )
