"""MATH-500: 500 competition problems, 0-shot, with answers compared as formulas (extra `math`).

Paper: Lightman et al. 2023, "Let's Verify Step by Step", which chose them from the test problems of
MATH (Hendrycks et al. 2021). Data: HuggingFaceH4/MATH-500 (MIT), with subject and level from 1 to
5. A sample is the problem and a line that asks for the answer within \\boxed{}, as EvalScope's
math_500 asks; an answer is right if the scorer `math`, by the library math-verify, finds it equal.
Tested on the real set.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_eval.datasets import local
from serve_eval.datasets.source import HubSource, Source
from serve_eval.errors import DatasetError, PlanError
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
from serve_eval.scorers.math import package, score_formula, write_answer
from serve_eval.tasks._samples import NumSamples, RandomSeed, break_down, shuffle

SOURCE = Source(
    name="MATH-500",
    folders=("HuggingFaceH4/MATH-500", "math_500"),
    homepage="https://huggingface.co/datasets/HuggingFaceH4/MATH-500",
    licence="MIT",
    rows="500 test",
    revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    sha256={"test.jsonl": "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"},
    hub=HubSource(
        repository="HuggingFaceH4/MATH-500",
        patterns=("test.jsonl",),
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    ),
)
PROMPT_FROM = "EvalScope (https://github.com/modelscope/evalscope, Apache-2.0)"
ROWS = 500
COLUMNS = ("problem", "answer", "subject", "unique_id")
BOX_LINE = "Please reason step by step, and put your final answer within \\boxed{}."
TABLES = ("level", "subject")


def task(*, num_samples: NumSamples = ROWS, random_seed: RandomSeed = 0) -> Task:
    """Return the task with its options.

    Problems are asked in an order that `random_seed` fixes. Raises PlanError for fewer than one.
    """
    if num_samples < 1:
        raise PlanError("math_500: num_samples must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        package()  # fail before any request; the processes that score load it once
        split = local.read_split(SOURCE, roots, "test", COLUMNS, wanted=wanted, published=ROWS)
        return split.build_dataset(
            [
                _sample(split.rows[i], f"{split.file.path}: row {i + 1}")
                for i in shuffle(len(split.rows), random_seed)[:wanted]
            ]
        )

    return Task(
        name="math_500",
        version=1,
        datasets=("math_500",),
        reference_file="math_500",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=32768),
        chat=True,
        protocol={"random_seed": random_seed},
        load=load,
        score=_score,
        answers=_answers,
        breakdown=break_down("level", "subject"),
    )


def _sample(row: Mapping[str, object], where: str) -> Sample:
    level = row.get("level")
    if isinstance(level, bool) or str(level) not in tuple("12345"):
        raise DatasetError(f"{where}: level must be a number from 1 to 5, not {level!r}")
    return Sample(
        id=str(row["unique_id"]).removesuffix(".json").replace("/", "-"),
        prompt=(Message(role="user", content=f"{row['problem']}\n{BOX_LINE}"),),
        target=str(row["answer"]),
        metadata={"level": str(level), "subject": str(row["subject"])},
    )


def _score(sample: Sample, response: Response) -> Score:
    return score_formula(response.text, sample.target)


def _answers(sample: Sample) -> tuple[str, str]:
    return write_answer(sample.target), "I do not know."
