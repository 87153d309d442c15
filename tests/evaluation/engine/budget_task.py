"""A task for tests of the budget."""

from __future__ import annotations

from serve_eval.schema import DataRoots, Dataset, Hypothesis, Metric, SamplingParams, Task
from serve_eval.scorers.choice import prefix_match


def _load(roots: DataRoots, wanted: int) -> Dataset:
    raise NotImplementedError


def make_task(sampling: SamplingParams) -> Task:
    """Return a task that is never loaded."""
    return Task(
        name="letters",
        version=1,
        reference_file="letters",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=10),
        sampling=sampling,
        protocol={},
        load=_load,
        score=lambda sample, response: prefix_match(response.text, sample.target),
        answers=lambda sample: (" A", " B"),
    )
