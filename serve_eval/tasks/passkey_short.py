"""Passkey retrieval in a few hundred tokens: a five-digit key between sentences of filler.

Generated, without a data set: the form of the long passkey tasks, for models with a short window,
such as the embedded one. A sample ends in "What is the pass key?" and is right if the first digits
of the answer are the key.
"""

from __future__ import annotations

import random
from typing import Annotated

from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Sample,
    SamplingParams,
    Task,
)
from serve_eval.tasks._passkey import by_depth, hide_key, score
from serve_eval.tasks._samples import ByChat, NumSamples, RandomSeed

DATA_VERSION = 1
"""Increases when the generator gives other texts for the same seed."""
DEPTHS = 11
"""Places of the key, from the first sentence to the last."""


def task(
    *,
    num_samples: NumSamples = 110,
    sentences: Annotated[int, Setting("Sentences of filler, of about seven tokens each.")] = 20,
    apply_chat_template: ByChat = False,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    `sentences` of filler have about seven tokens each. Raises PlanError for options out of range.
    """
    if num_samples < 1 or sentences < 1:
        raise PlanError("passkey_short: num_samples and sentences must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        rng = random.Random(f"passkey_short:{random_seed}")
        samples = []
        for i in range(wanted):
            depth = i % DEPTHS / (DEPTHS - 1)
            found = hide_key(rng, sentences=sentences, depth=depth)
            turn = (Message(role="user", content=found.prompt),)
            prompt = turn if apply_chat_template else f"Question: {found.prompt}\nAnswer: "
            known = {"depth": f"{100 * depth:.0f} %"}
            samples.append(Sample(id=f"{i}", prompt=prompt, target=str(found.key), metadata=known))
        return Dataset(samples=samples, files=(), total=wanted)

    return Task(
        name="passkey_short",
        version=1,
        reference_file="passkey_short",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=24),
        chat=apply_chat_template,
        protocol={"data_version": DATA_VERSION, "random_seed": random_seed, "sentences": sentences},
        load=load,
        score=score,
        answers=_answers,
        breakdown=by_depth,
        scoring="inline",
    )


def _answers(sample: Sample) -> tuple[str, str]:
    return f"The pass key is {sample.target}.", f"The pass key is {int(sample.target) - 1}."
