"""Perplexity of solved word problems that the embedded model has never seen; lower is better.

The problems are generated. A sample is a problem with its solution, as a text that is sent as a
prompt. The endpoint must return the log-probabilities of prompts.
"""

from __future__ import annotations

from itertools import islice

from serve_eval.datasets.generated import DATA_VERSION, format_solved, problems
from serve_eval.errors import PlanError
from serve_eval.schema import DataRoots, Dataset, Hypothesis, Sample, SamplingParams, Task
from serve_eval.tasks._samples import (
    METRIC,
    NO_GOLD,
    NumSamples,
    RandomSeed,
    all_tokens,
    answers,
    score,
)


def task(*, num_samples: NumSamples = 200, random_seed: RandomSeed = 0) -> Task:
    """Return the task with its options: `num_samples` problems of the seed.

    Raises PlanError for fewer than one.
    """
    if num_samples < 1:
        raise PlanError("word_problems_perplexity: num_samples must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        found = islice(problems("test", random_seed), wanted)
        samples = [
            Sample(id=f"test-{i}", prompt=format_solved(problem), target="")
            for i, problem in enumerate(found)
        ]
        return Dataset(samples=samples, files=(), total=wanted)

    return Task(
        name="word_problems_perplexity",
        version=1,
        reference_file="word_problems_perplexity",
        metric=METRIC,
        hypothesis=Hypothesis(num_samples=num_samples, sigma=0.5),
        sampling=SamplingParams(max_tokens=1),
        protocol={"data_version": DATA_VERSION, "random_seed": random_seed},
        load=load,
        score=score,
        answers=answers,
        secondary=all_tokens,
        prompt_logprobs=True,
        no_gold=NO_GOLD,
        scoring="inline",
    )
