"""Word problems: small sums told as stories, generated, for the embedded model; 0-shot.

No data set and no benchmark: the task shows if a model that was trained on such problems still
solves new ones. A sample is the prompt "Question: Bela has 12 nuts. Bela wins 30. How many nuts
does Bela have now?\\n Answer: " with the solution "12+30=42\\n#### 42". The number after the last
`#### ` is scored.
"""

from __future__ import annotations

import random
from itertools import islice
from typing import Annotated, Literal

from serve_eval.datasets.generated import (
    DATA_VERSION,
    Problem,
    format_question,
    format_solved,
    problems,
)
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
from serve_eval.scorers.likelihood import likeliest
from serve_eval.tasks._gsm8k import score as score_last_line
from serve_eval.tasks._samples import (
    METRIC,
    NO_GOLD,
    ByChat,
    NumFewshot,
    NumSamples,
    RandomSeed,
    all_tokens,
    answers,
    break_down,
    score,
)

STEPS = "steps"
OFF_BY = (-10, -1, 1, 10)
"""Errors that the last sum of a wrong choice may have."""

Scoring = Literal["answer", "loglikelihood"]


def task(
    *,
    num_samples: NumSamples = 500,
    num_fewshot: NumFewshot = 0,
    apply_chat_template: ByChat = False,
    random_seed: RandomSeed = 0,
    scoring: Annotated[
        Scoring,
        Setting("Score the answer that the model writes, or the likelihoods of four solutions."),
    ] = "answer",
) -> Task:
    """Return the task with its options.

    `apply_chat_template` asks the bare question by chat; `num_fewshot` puts solved problems of the
    training split before a text. `scoring` "loglikelihood" asks which of four solutions is the
    likeliest; one is right. Raises PlanError for options that exclude each other.
    """
    likelihood = scoring == "loglikelihood"
    if num_samples < 1 or num_fewshot < 0:
        raise PlanError("word_problems: num_samples must be 1 or more, num_fewshot 0 or more")
    if apply_chat_template and (likelihood or num_fewshot):
        raise PlanError(
            "word_problems: num_fewshot and loglikelihood need apply_chat_template: false"
        )

    def load(roots: DataRoots, wanted: int) -> Dataset:
        shots = problems("train", random_seed)
        samples = []
        for i, problem in enumerate(islice(problems("test", random_seed), wanted)):
            text = "".join(
                f"{format_solved(shot)}\n\n" for shot in islice(shots, num_fewshot)
            ) + format_question(problem)
            prompt = (
                (Message(role="user", content=problem.question),) if apply_chat_template else text
            )
            choices = (
                _choices(problem, random.Random(f"choices:{random_seed}:{i}")) if likelihood else ()
            )
            known = {STEPS: str(problem.solution.count("\n"))}
            samples.append(
                Sample(
                    id=f"test-{i}",
                    prompt=prompt,
                    target=problem.solution,
                    metadata=known,
                    choices=choices,
                )
            )
        return Dataset(samples=samples, files=(), total=wanted)

    def score(sample: Sample, response: Response) -> Score:
        if response.choice_logprobs is None:
            return score_last_line(sample, response)
        return likeliest(response.choice_logprobs, sample.choices, sample.target)

    return Task(
        name="word_problems",
        version=1,
        reference_file="word_problems",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(
            max_tokens=1 if likelihood else 128, stop=() if apply_chat_template else ("\n\n",)
        ),
        chat=apply_chat_template,
        protocol={
            "data_version": DATA_VERSION,
            "num_fewshot": num_fewshot,
            "random_seed": random_seed,
            **({"scoring": scoring} if likelihood else {}),
        },
        load=load,
        score=score if likelihood else score_last_line,
        answers=_answers,
        breakdown=break_down(STEPS),
        prompt_logprobs=likelihood,
        scoring="inline",
    )


def _choices(problem: Problem, rng: random.Random) -> tuple[str, ...]:
    """Return the solution and three others with a wrong last sum, in random order."""
    before, _, _ = problem.solution.rpartition("=")
    wrong = [
        f"{before}={problem.answer + by}\n#### {problem.answer + by}"
        for by in rng.sample(OFF_BY, 3)
    ]
    found = [problem.solution, *wrong]
    rng.shuffle(found)
    return tuple(found)


def _answers(sample: Sample) -> tuple[str, str]:
    if sample.choices:
        return sample.target, next(choice for choice in sample.choices if choice != sample.target)
    return sample.target, f"{sample.target}0"


def word_problems_perplexity(*, num_samples: NumSamples = 200, random_seed: RandomSeed = 0) -> Task:
    """Perplexity of solved word problems that the embedded model has never seen; lower is better.

    The problems are generated. A sample is a problem with its solution, as a text that is sent as a
    prompt. The endpoint must return the log-probabilities of prompts.
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
