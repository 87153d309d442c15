"""AIME: 30 competition problems a year with integer answers, 0-shot, as lm-eval asks them.

trtllm-eval asks them the same way. Data: Maxwell-Jia/AIME_2024, math-ai/aime25 and
MathArena/aime_2026, or the files of GAIR-NLP/AIME-Preview for 2024 and 2025; columns `problem` and
`answer`, 30 problems each. A sample of 2024 or 2025 is "Question: ...\\nAnswer:"; 2026 asks for the
answer within \\boxed{}. An answer is right if its last box, or the text between dollar signs, is
the answer. A second figure says if the last integer is. Tested on the real problems of 2024 and
2025 from AIME-Preview; the other layouts come from documentation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError, PlanError
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
    SourceFile,
    Task,
)
from serve_eval.scorers.boxed import integer_answer
from serve_eval.tasks._samples import NumSamples, RandomSeed, StopsOfSuite, shuffle

ROWS = 30
USUAL_REPEATS = 16
"""Answers to each problem in most published tables, of 8 to 64: the mean of one answer to each has
a standard error of several points from the sampling alone."""
STOP = ("Question:", "</s>", "<|im_end|>", "<|eot_id|>")
BOX_LINE = "Please reason step by step, and put your final answer within \\boxed{}."
LAYOUTS: dict[int, tuple[tuple[str, ...], ...]] = {
    2024: (("train",), ("aime_2024_problems",), ("test2024",)),
    2025: (("test",), ("test2025-I", "test2025-II")),
    2026: (("train",),),
}
"""The names of the files with the problems of a year, by layout."""
PLACES = ("", "data/")

Year = Literal[2024, 2025, 2026]


def task(
    *,
    year: Annotated[Year, Setting("Year of the competition; each has its own data set.")] = 2025,
    num_samples: NumSamples = ROWS,
    random_seed: RandomSeed = 0,
    suite_exact: StopsOfSuite = False,
) -> Task:
    """Return the task with its options.

    It has no reference file, and trtllm-eval has no 2024. Thirty problems show only large changes:
    ask each several times, as --repeats usual does. The stop strings of a base model are sent only
    with `suite_exact`, because they can cut an answer. Raises PlanError for options out of range.
    """
    if num_samples < 1:
        raise PlanError("aime: num_samples must be 1 or more")
    source = KNOWN[f"aime{year % 100}"]

    def load(roots: DataRoots, wanted: int) -> Dataset:
        files, problems = _read(source, roots, year)
        count = len(problems)
        told = f"{source.name} is incomplete: {files[-1].path} has the last of {count} problems"
        local.check_rows(roots, count, wanted, told, source)
        samples = [
            Sample(
                id=f"{year}-{i}",
                prompt=(Message(role="user", content=prompt_text(problems[i].text, year)),),
                target=problems[i].answer,
            )
            for i in shuffle(count, random_seed)[:wanted]
        ]
        deviation = None if count == ROWS else f"{count} problems, where {source.name} has {ROWS}"
        return Dataset(samples=samples, files=files, total=count, deviation=deviation)

    return Task(
        name="aime",
        version=1,
        datasets=(f"aime{year % 100}",),
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
    """Return the problem, from 2026 on with the line that asks for a box."""
    line = "" if year < 2026 else f"\n{BOX_LINE}"
    return f"Question: {problem}{line}\nAnswer:"


@dataclass(frozen=True, slots=True)
class _Problem:
    """A problem and its answer in digits."""

    text: str
    answer: str


def _read(
    source: local.Source, roots: DataRoots, year: Year
) -> tuple[tuple[SourceFile, ...], list[_Problem]]:
    """Return the files of a year, in the first layout found, and all their problems in order."""
    layouts = LAYOUTS[year]
    folder = local.find_folder(
        source, roots, local.split_markers([name for one in layouts for name in one], PLACES)
    )
    there = (
        one for one in layouts if any([*folder.glob(m)] for m in local.split_markers(one, PLACES))
    )
    files = [local.find_split(source, folder, split, PLACES) for split in next(there, layouts[0])]
    return tuple(file.source for file in files), [
        _problem(row, file) for file in files for row in local.rows(file, [])
    ]


def _problem(row: dict[str, Any], file: local.DataFile) -> _Problem:
    """Return a row's problem. Some copies capitalise their column names."""
    named = {name.lower(): value for name, value in row.items()}
    text, answer = named.get("problem"), str(named.get("answer", "")).strip()
    if not isinstance(text, str):
        raise DatasetError(f"{file.path}: a row has no text in column problem")
    if not answer.isdecimal():
        raise DatasetError(
            f"{file.path}: the column answer must hold integers, not {answer[:20]!r}"
        )
    return _Problem(text, answer)


def _score(sample: Sample, response: Response) -> Score:
    return integer_answer(response.text, sample.target)


def _answers(sample: Sample) -> tuple[str, str]:
    return f"So it is \\boxed{{{sample.target}}}.", f"So it is \\boxed{{{int(sample.target) + 1}}}."
