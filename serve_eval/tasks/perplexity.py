"""Perplexity of long texts, SlimPajama by default; lower is better.

Data: the test split of DKYoon/SlimPajama-6B, column `text`, or your own text files. A sample is a
text that is sent as a prompt. Its perplexity is exp of the mean of -log p over its tokens, and the
value is the mean over the samples. The endpoint must return log-probabilities of prompts, which
trtllm-serve does not. Layout from documentation, not tested on the real set.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import DataRoots, Dataset, Hypothesis, Sample, SamplingParams, Task
from serve_eval.scorers.rouge import clean
from serve_eval.tasks._samples import (
    METRIC,
    NO_GOLD,
    NumSamples,
    RandomSeed,
    all_tokens,
    answers,
    score,
    shuffle,
)

SOURCE = KNOWN["slimpajama"]
CHARS_PER_TOKEN = 4
"""A rule of thumb for English text: a client has no tokenizer."""


def task(
    *,
    num_samples: NumSamples = 86,
    files: Annotated[
        list[str] | None,
        Setting(
            "Text files of your own, below a dataset root or by their whole path. Not set: "
            "SlimPajama."
        ),
    ] = None,
    min_tokens: Annotated[
        int, Setting("Fewest tokens of a text that is asked; a token counts as four characters.")
    ] = 10000,
    max_input_tokens: Annotated[int, Setting("Tokens at which a text is cut.")] = 16384,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    As in the suite, `random_seed` shuffles the texts, those of up to `min_tokens` are omitted, the
    others are cut at `max_input_tokens`, and the first `num_samples` are asked. Here a token counts
    as four characters. `files` are your own texts, below a dataset root or by their whole path,
    unchanged and in their order. Each is cut into pieces of `max_input_tokens`, of which the last
    may be shorter. Raises PlanError for options out of range.
    """
    if num_samples < 1 or not 0 <= min_tokens < max_input_tokens:
        raise PlanError(
            "perplexity: num_samples must be 1 or more, min_tokens 0 or more and below"
            " max_input_tokens"
        )
    most, least = max_input_tokens * CHARS_PER_TOKEN, min_tokens * CHARS_PER_TOKEN

    def load(roots: DataRoots, wanted: int) -> Dataset:
        read = (
            [_slimpajama(roots, random_seed)]
            if files is None
            else [_own(roots, name) for name in files]
        )
        texts = [(name, text) for _, named in read for name, text in named]
        if files is not None:
            texts = [
                (f"{name}-{i // most}", text[i : i + most])
                for name, text in texts
                for i in range(0, len(text), most)
            ]
        kept = [(name, text[:most]) for name, text in texts if len(text) > least]
        told = f"perplexity: {len(kept)} texts are longer than {least} characters"
        local.check_rows(roots, len(kept), wanted if files is None else 1, told, SOURCE)
        return Dataset(
            samples=[Sample(id=name, prompt=text, target="") for name, text in kept[:wanted]],
            files=tuple(file.source for file, _ in read),
            total=len(texts),
            deviation=("the texts are chosen by characters" if files is None else "your own texts"),
        )

    return Task(
        name="perplexity",
        version=1,
        datasets=("slimpajama",) if files is None else (),
        reference_file="SlimPajama-6B",
        metric=METRIC,
        hypothesis=Hypothesis(num_samples=num_samples, sigma=4.48, alpha=0.01),
        sampling=SamplingParams(max_tokens=1),
        protocol={
            "files": files,
            "min_tokens": min_tokens,
            "max_input_tokens": max_input_tokens,
            "random_seed": random_seed,
        },
        load=load,
        score=score,
        answers=answers,
        secondary=all_tokens,
        prompt_logprobs=True,
        no_gold=NO_GOLD,
        context_tokens=max_input_tokens + 1,
        scoring="inline",
    )


def _slimpajama(roots: DataRoots, seed: int) -> tuple[local.DataFile, Iterable[tuple[str, str]]]:
    split = local.read_split(
        SOURCE, roots, "test", ["text"], wanted=1, published=None, subfolders=("", "data/")
    )
    order = shuffle(len(split.rows), seed)
    # The suite strips every text and rejoins "n't", in every task.
    return split.file, [(f"test-{i}", clean(split.rows[i]["text"])) for i in order]


def _own(roots: DataRoots, name: str) -> tuple[local.DataFile, Iterable[tuple[str, str]]]:
    """Return a text file. Raises DatasetError if it is not found."""
    places = [root / name for root in (*roots.roots, Path())]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise DatasetError(
            f"perplexity: {name} was not found in"
            f" {', '.join(str(place.parent) for place in places)}"
        )
    file = local.read_file(found)
    return file, [(Path(name).stem, local.text_of(file))]
