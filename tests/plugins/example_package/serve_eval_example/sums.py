"""Sums: generated additions of two numbers, as an example of a task in a package."""

from __future__ import annotations

from serve_eval.errors import PlanError
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Metric,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval_example._numbers import last_number


def task(*, num_samples: int = 50) -> Task:
    """Return the task with its options; raise PlanError for fewer than one sample."""
    if num_samples < 1:
        raise PlanError("sums: num_samples must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        pairs = [(7 * i + 3, 5 * i + 1) for i in range(wanted)]
        samples = [
            Sample(id=f"{a}+{b}", prompt=f"{a} + {b} =", target=str(a + b)) for a, b in pairs
        ]
        return Dataset(samples=samples, files=(), total=wanted)

    return Task(
        name="sums",
        version=1,
        reference_file="sums",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=8),
        protocol={},
        load=load,
        score=_score,
        answers=lambda sample: (f" {sample.target}", " 0"),
    )


def _score(sample: Sample, response: Response) -> Score:
    said = last_number(response.text)
    if said is None:
        return Score(value=0.0, outcome=Outcome.UNPARSED)
    right = said == float(sample.target)
    return Score(
        value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG, answer=f"{said:g}"
    )
