"""AIME: thirty competition problems a year whose answers are integers, zero-shot, as trtllm-eval asks them.

Data: math-ai/aime25 and MathArena/aime_2026, columns `problem` and `answer`, 30 problems each. One sample of 2025 is
"Question: ...\\nAnswer:"; 2026 asks for the answer within \\boxed{}. Right when the last box, or what stands between
dollar signs, is the answer; beside it stands whether the last integer there is. Layout from documentation, not tried on
the real set.
"""

from __future__ import annotations

from typing import Literal

from serve_eval.datasets import local
from serve_eval.datasets.known import KNOWN
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
from serve_eval.scorers.boxed import integer_answer
from serve_eval.tasks._order import shuffled

ROWS = 30
STOP = ("Question:", "</s>", "<|im_end|>", "<|eot_id|>")
BOX_LINE = "Please reason step by step, and put your final answer within \\boxed{}."
SPLITS = {2025: "test", 2026: "train"}

Year = Literal[2025, 2026]


def task(
    *,
    year: Year = 2025,
    num_samples: int = ROWS,
    random_seed: int = 0,
    suite_exact: bool = False,
) -> Task:
    """The task with its options.

    There is no reference file. Thirty problems show gross changes only: ask each several times with --repeats. The
    stop strings of a base model are sent with `suite_exact` only: they can end an answer in the middle. Raises
    PlanError for options out of range.
    """
    if num_samples < 1:
        raise PlanError("aime: num_samples must be 1 or more")
    source = KNOWN[f"aime{year % 100}"]

    def load(roots: DataRoots, wanted: int) -> Dataset:
        split = local.read_split(
            source, roots, SPLITS[year], ["problem"], wanted=wanted, published=ROWS, subfolders=("", "data/")
        )
        answers = [str(row.get("answer", "")).strip() for row in split.rows]
        if not all(answer.isdecimal() for answer in answers):
            raise DatasetError(f"{split.file.path}: the column answer must hold integers")
        samples = [
            Sample(
                id=f"{year}-{i}",
                prompt=(Message(role="user", content=prompt_text(split.rows[i]["problem"], year)),),
                target=answers[i],
            )
            for i in shuffled(len(split.rows), random_seed)[:wanted]
        ]
        return Dataset(samples=samples, files=(split.file.source,), total=len(split.rows), deviation=split.deviation)

    return Task(
        name="aime",
        version=1,
        reference_file=f"aime{year % 100}",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=32768, stop=STOP if suite_exact else ()),
        extra={"truncate_prompt_tokens": 4096},
        chat=True,
        protocol={
            "year": year,
            "random_seed": random_seed,
        },
        load=load,
        score=_score,
        answers=_answers,
        scoring="inline",
    )


def prompt_text(problem: str, year: Year) -> str:
    """The problem; from 2026 on with the line that asks for a box."""
    line = "" if year == 2025 else f"\n{BOX_LINE}"
    return f"Question: {problem}{line}\nAnswer:"


def _score(sample: Sample, response: Response) -> Score:
    return integer_answer(response.text, sample.target)


def _answers(sample: Sample) -> tuple[str, str]:
    return f"So it is \\boxed{{{sample.target}}}.", f"So it is \\boxed{{{int(sample.target) + 1}}}."
