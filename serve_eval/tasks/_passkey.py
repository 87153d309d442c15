"""Hide a number in a text and score its repetition, as TensorRT-LLM's suite does."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers._expected import grade_value
from serve_eval.tasks._samples import ByChat, NumSamples, RandomSeed, average

FIRST, CONTAINED = "first_digits", "contained"
_DIGITS = re.compile(r"\d+")


def first_digits(text: str, target: str) -> Score:
    """Score 1 if the first run of digits is the target, as in TensorRT-LLM's suite.

    The parts also say if any run is.
    """
    runs = _DIGITS.findall(text)
    parts = {FIRST: float(runs[:1] == [target]), CONTAINED: float(target in runs)}
    return grade_value(parts[FIRST], runs[0] if runs else None, parts)


NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
)
HEAD = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information.\n\n"
)
TAIL = "\n\nWhat is the pass key?\n\nThe pass key is"
PER_DEPTH = 5
SUITE_SAMPLES = 20

Depths = Literal["first", "all"]


def keys(count: int, seed: int) -> list[str]:
    """Return the first pass keys: five digits each, drawn digit by digit from one generator."""
    rng = random.Random(seed)
    return ["".join(str(rng.randint(0, 9)) for _ in range(5)) for _ in range(count)]


def context(key: str, depth: int, lines: int) -> str:
    """Return `lines` lines of noise with the key after the first `depth` of them."""
    needle = f"The pass key is {key}. Remember it. {key} is the pass key.\n"
    return NOISE * depth + needle + NOISE * (lines - depth)


def choose(total: int, wanted: int, depths: Depths) -> Sequence[int]:
    """Return the samples to ask: the first ones, or ones spread evenly from first to last."""
    if depths == "first" or wanted == 1:
        return range(wanted)
    return [round(i * (total - 1) / (wanted - 1)) for i in range(wanted)]


def passkey_task(name: str, *, lines: int, step: int, max_input: int) -> Callable[..., Task]:
    """Return the function of the task with texts of one length.

    A text has `lines` lines of noise. There is a key position every `step` lines. `max_input` is
    the maximum number of prompt tokens in the suite.
    """
    places = [depth for depth in range(0, lines + 1, step) for _ in range(PER_DEPTH)]

    def task(
        *,
        num_samples: NumSamples = SUITE_SAMPLES,
        depths: Annotated[
            Depths,
            Setting(
                "Depths of the keys: the first ones, as TensorRT-LLM's suite, or all, spread "
                "evenly over the text."
            ),
        ] = "first",
        random_seed: RandomSeed = 0,
    ) -> Task:
        """Return the task with its options.

        The suite asks the first 20 of 295 samples, whose keys are all in the first 6 % of the text.
        `depths` "all" spreads `num_samples` over the whole text. Raises PlanError for options out
        of range.
        """
        if not 1 <= num_samples <= len(places):
            raise PlanError(f"{name}: num_samples must be 1 to {len(places)}")

        def load(roots: DataRoots, wanted: int) -> Dataset:
            hidden = keys(len(places), random_seed)
            samples = [
                Sample(
                    id=f"{i}",
                    prompt=HEAD + context(hidden[i], places[i], lines) + TAIL,
                    target=hidden[i],
                    metadata={"depth": f"{100 * places[i] / lines:.1f} %"},
                )
                for i in choose(len(places), min(wanted, len(places)), depths)
            ]
            return Dataset(samples=samples, files=(), total=len(places))

        return Task(
            name=name,
            version=1,
            reference_file=name,
            metric=Metric(),
            hypothesis=Hypothesis(num_samples=num_samples, sigma=0.0, alpha=0.5),
            sampling=SamplingParams(max_tokens=6),
            protocol={
                "depths": depths,
                "random_seed": random_seed,
            },
            load=load,
            score=score,
            answers=_answers,
            breakdown=by_depth,
            context_tokens=max_input,
            scoring="inline",
        )

    size = max_input // 1024
    task.__doc__ = f"""\
Passkey retrieval in about {size},000 tokens: a five-digit key between lines of noise.

Generated, without a data set: Mohtashami and Jaggi 2023, as in InfiniteBench and TensorRT-LLM's
suite. A sample ends in "What is the pass key?\\n\\nThe pass key is" and is right if the first
digits of the completion are the key.
"""
    return task


def score(sample: Sample, response: Response) -> Score:
    """Return 1 if the first digits of the answer are the key."""
    return first_digits(response.text, sample.target)


def _answers(sample: Sample) -> tuple[str, str]:
    return f" {sample.target}.", f" {(int(sample.target) + 1) % 100000:05}."


def by_depth(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """Return the accuracy in percent by the depth of the key."""
    by_depth: dict[str, list[float]] = defaultdict(list)
    for sample, value in scored:
        by_depth[sample.metadata["depth"]].append(value)
    return {"depth": {depth: average(values) for depth, values in by_depth.items()}}


FILLER = (
    "The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.",
    "There and back again.", "The road is long.", "The river is wide.", "The wind is cold.",
    "The night is dark.", "The bread is warm.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hidden:
    """A prompt and the five-digit number that it hides."""

    prompt: str
    key: int


def hide_key(rng: random.Random, *, sentences: int, depth: float) -> Hidden:
    """Hide a key in filler after the share `depth` of the sentences (0: at the start)."""
    key = rng.randint(10000, 99999)
    filler = [rng.choice(FILLER) for _ in range(sentences)]
    at = round(depth * sentences)
    told = f"The pass key is {key}. Remember it. {key} is the pass key."
    return Hidden(" ".join([*filler[:at], told, *filler[at:], "What is the pass key?"]), key)


passkey_retrieval_128k = passkey_task(
    "passkey_retrieval_128k", lines=5220, step=90, max_input=131072
)
passkey_retrieval_64k = passkey_task("passkey_retrieval_64k", lines=2610, step=45, max_input=65536)


LINES_VERSION = 1
"""Increases when the generator gives other texts for the same seed."""
DEPTHS = 11
"""Places of the key, from the first line to the last."""


def passkey_lines(
    *,
    num_samples: NumSamples = 55,
    lines: Annotated[int, Setting("Lines of noise, of some 20 tokens each.")] = 300,
    random_seed: RandomSeed = 0,
) -> Task:
    """Passkey retrieval in a text of any number of lines: a five-digit key between lines of noise.

    Generated, without a data set: the text of the long passkey tasks. Each text begins with its own
    title, so that no part of it is already in a prefix cache. The key of a sample is the same at
    every length.
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
        protocol={"data_version": LINES_VERSION, "random_seed": random_seed, "lines": lines},
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


SHORT_VERSION = 1
"""Increases when the generator gives other texts for the same seed."""


def passkey_short(
    *,
    num_samples: NumSamples = 110,
    sentences: Annotated[int, Setting("Sentences of filler, of about seven tokens each.")] = 20,
    apply_chat_template: ByChat = False,
    random_seed: RandomSeed = 0,
) -> Task:
    """Passkey retrieval in a few hundred tokens: a five-digit key between sentences of filler.

    Generated, without a data set: the form of the long passkey tasks, for models with a short
    window, such as the embedded one. A sample ends in "What is the pass key?" and is right if the
    first digits of the answer are the key.
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
        protocol={
            "data_version": SHORT_VERSION,
            "random_seed": random_seed,
            "sentences": sentences,
        },
        load=load,
        score=score,
        answers=_answer_short,
        breakdown=by_depth,
        scoring="inline",
    )


def _answer_short(sample: Sample) -> tuple[str, str]:
    return f"The pass key is {sample.target}.", f"The pass key is {int(sample.target) - 1}."
