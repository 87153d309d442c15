"""Passkey retrieval in a text of any number of lines: a five-digit key between lines of noise.

Generated, without a data set: the text of the long passkey tasks. Each text begins with its own
title, so that no part of it is already in a prefix cache. The key of a sample is the same at every
length.
"""

from __future__ import annotations

import random
from typing import Annotated

from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import DataRoots, Dataset, Hypothesis, Metric, Sample, SamplingParams, Task
from serve_eval.tasks._passkey import HEAD, TAIL, by_depth, context, keys, score
from serve_eval.tasks._samples import NumSamples, RandomSeed

DATA_VERSION = 1
"""Increases when the generator gives other texts for the same seed."""
DEPTHS = 11
"""Places of the key, from the first line to the last."""


def task(
    *,
    num_samples: NumSamples = 55,
    lines: Annotated[int, Setting("Lines of noise, of some 20 tokens each.")] = 300,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    `lines` of noise have some 20 tokens each. Raises PlanError for options out of range.
    """
    if num_samples < 1 or lines < 1:
        raise PlanError("passkey_lines: num_samples and lines must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        samples = []
        for i, key in enumerate(keys(wanted, random_seed)):
            depth = i % DEPTHS / (DEPTHS - 1)
            hidden = context(key, round(depth * lines), lines)
            text = f"{_title(i, lines, random_seed)}\n\n{HEAD}{hidden}{TAIL}"
            samples.append(
                Sample(
                    id=f"{i}", prompt=text, target=key, metadata={"depth": f"{100 * depth:.0f} %"}
                )
            )
        return Dataset(samples=samples, files=(), total=wanted)

    return Task(
        name="passkey_lines",
        version=1,
        reference_file="passkey_lines",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=24),
        protocol={"data_version": DATA_VERSION, "random_seed": random_seed, "lines": lines},
        load=load,
        score=score,
        answers=_answers,
        breakdown=by_depth,
        scoring="inline",
    )


def _title(i: int, lines: int, seed: int) -> str:
    """Return made-up words, different ones for every text."""
    rng = random.Random(f"passkey_lines:{seed}:{lines}:{i}")
    words = [
        "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))
        for _ in range(2)
    ]
    return " ".join(words).capitalize()


def _answers(sample: Sample) -> tuple[str, str]:
    return f" {sample.target}.", f" {(int(sample.target) + 1) % 100000:05}."
