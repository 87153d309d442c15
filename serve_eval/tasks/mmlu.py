"""MMLU: multiple choice in 57 subjects, 5-shot, one letter, as TensorRT-LLM's evaluator asks them.

Paper: Hendrycks et al. 2021, "Measuring Massive Multitask Language Understanding". Data:
hendrycks/test (MIT), one CSV file per subject and split with the columns question, A, B, C, D,
answer letter and no header. A sample ends in "What is 2+2?\\nA. 3\\nB. 4\\nC. 5\\nD. 6\\nAnswer:".
It is right if the completion starts with "B" or, with an option, if " B" is a likelier continuation
than " A", " C" and " D".

Source: hendrycks/test.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Metric,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers.choice import prefix_match
from serve_eval.scorers.likelihood import likeliest
from serve_eval.tasks._samples import NumFewshot, RandomSeed, break_down_by, read_entry

SOURCE = KNOWN["mmlu"]
LETTERS = "ABCD"
CHOICES = tuple(f" {letter}" for letter in LETTERS)
TEST_ROWS = 14042

Row = list[str]


def task(
    *,
    num_samples: Annotated[
        int, Setting("Number of questions: the same for each of the 57 subjects, rounded up.")
    ] = 4096,
    num_fewshot: NumFewshot = 5,
    none_cells: Annotated[
        Literal["nan", "none"],
        Setting(
            "Reading of a cell None in the data: nan as TensorRT-LLM's suite reads it, none as "
            "it is written."
        ),
    ] = "nan",
    random_seed: RandomSeed = 0,
    scoring: Annotated[
        Literal["letter", "loglikelihood"],
        Setting("Score the letter that the model writes, or the likelihoods of the four letters."),
    ] = "letter",
) -> Task:
    """Return the task with its options.

    ceil(num_samples / 57) questions are drawn per subject, so 4096 asks 4104 questions; the
    registered number stays the n of the test. 14042, or the number that the data has, asks every
    question. `none_cells`: the suite reads the files with pandas, which turns the cell "None" into
    "nan"; `none` keeps it. `scoring`: the suite reads the letter that the model writes;
    `loglikelihood` compares the likelihoods of the four letters instead, as lm-evaluation-harness
    does. Raises PlanError for options out of range.
    """
    if not 0 <= num_fewshot <= 5 or num_samples < 1:
        raise PlanError("mmlu: num_fewshot must be 0 to 5, num_samples 1 or more")
    likelihood = scoring == "loglikelihood"

    def load(roots: DataRoots, wanted: int) -> Dataset:
        folder = local.find_folder(SOURCE, roots, ["test/*_test.csv", "dev/*_dev.csv"])
        files = _files(folder)
        test = {subject: _rows(files["test", subject], none_cells) for subject in SUBJECTS}
        dev = {subject: _rows(files["dev", subject], none_cells) for subject in SUBJECTS}
        total = sum(map(len, test.values()))
        short = [subject for subject in SUBJECTS if len(dev[subject]) < num_fewshot]
        if short:
            raise DatasetError(
                f"MMLU is incomplete: {folder} has fewer than {num_fewshot} dev rows in"
                f" {', '.join(short)}",
                hint=local.advice(SOURCE),
            )
        told = f"MMLU is incomplete: {folder} has {total} test questions"
        local.check_rows(roots, total, wanted, told, SOURCE)
        wanted = min(wanted, total)
        heads = {subject: _head(subject, dev[subject][:num_fewshot]) for subject in SUBJECTS}
        samples = []
        for subject, row in _sample({s: len(test[s]) for s in SUBJECTS}, wanted, random_seed):
            samples.append(
                Sample(
                    id=f"{subject}-{row}",
                    prompt=heads[subject] + _example(test[subject][row]),
                    target=test[subject][row][5],
                    metadata={"subject": subject},
                    choices=CHOICES if likelihood else (),
                )
            )
        return Dataset(
            samples=samples,
            files=tuple(file.source for file in files.values()),
            total=total,
            deviation=(
                None
                if total == TEST_ROWS
                else f"{total} test questions, where MMLU has {TEST_ROWS}"
            ),
        )

    return Task(
        name="mmlu",
        version=1,
        datasets=("mmlu",),
        reference_file="mmlu",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=1 if likelihood else 2),
        extra={"truncate_prompt_tokens": 4094},
        protocol={
            "num_fewshot": num_fewshot,
            "none_cells": none_cells,
            "random_seed": random_seed,
            **({"scoring": scoring} if likelihood else {}),
        },
        load=load,
        score=_score,
        answers=_answers,
        breakdown=break_down_by(
            {
                "subject": read_entry("subject"),
                "subcategory": _name_subcategory,
                "category": lambda sample: CATEGORY_OF[_name_subcategory(sample)],
            }
        ),
        prompt_logprobs=likelihood,
        scoring="inline",
    )


def _files(folder: Path) -> dict[tuple[str, str], local.DataFile]:
    paths = {
        (split, s): folder / split / f"{s}_{split}.csv"
        for split in ("dev", "test")
        for s in SUBJECTS
    }
    missing = [str(path) for path in paths.values() if not path.is_file()]
    if missing:
        shown = "".join(f"\n  {path}" for path in missing[:5])
        raise DatasetError(
            f"MMLU is incomplete: {len(missing)} files are missing:{shown}",
            hint=local.advice(SOURCE),
        )
    return {key: local.read_file(path) for key, path in paths.items()}


def _rows(file: local.DataFile, none_cells: str) -> list[Row]:
    try:
        table = list(csv.reader(io.StringIO(local.text_of(file), newline=""), strict=True))
    except csv.Error as error:
        raise DatasetError(f"{file.path}: {error}") from error
    for number, row in enumerate(table, 1):
        if len(row) != 6 or row[5] not in tuple(LETTERS):
            raise DatasetError(
                f"{file.path}: row {number} is not question, A, B, C, D, answer letter"
            )
    if not table:
        raise DatasetError(f"{file.path}: no rows")
    if none_cells == "nan":
        return [["nan" if cell == "None" else cell for cell in row] for row in table]
    return table


def _sample(sizes: Mapping[str, int], wanted: int, seed: int) -> list[tuple[str, int]]:
    """Return the (subject, row) of the questions: the same number for each subject, in their order.

    Subjects are in alphabetical order. The suite calls `DataFrame.sample` subject after subject on
    numpy's global legacy generator, which yields the head of a permutation by that generator.
    """
    import numpy

    per_subject = (
        math.ceil(wanted / len(sizes)) if wanted < sum(sizes.values()) else max(sizes.values())
    )
    generator = numpy.random.RandomState(seed)
    chosen: list[tuple[str, int]] = []
    for subject, size in sizes.items():
        rows = generator.permutation(size)[:per_subject] if per_subject < size else range(size)
        chosen += [(subject, int(row)) for row in rows]
    return chosen


def _example(row: Row) -> str:
    return (
        row[0]
        + "".join(f"\n{letter}. {cell}" for letter, cell in zip(LETTERS, row[1:5], strict=True))
        + "\nAnswer:"
    )


def _head(subject: str, shots: Sequence[Row]) -> str:
    """Return what the prompts of a subject share: the instruction and the examples."""
    about = "".join(f" {word}" for word in subject.split("_"))
    head = f"The following are multiple choice questions (with answers) about {about}.\n\n"
    return head + "".join(f"{_example(shot)} {shot[5]}\n\n" for shot in shots)


def _score(sample: Sample, response: Response) -> Score:
    if response.choice_logprobs is not None:
        return likeliest(response.choice_logprobs, LETTERS, sample.target)
    return prefix_match(response.text, sample.target)


def _answers(sample: Sample) -> tuple[str, str]:
    return f" {sample.target}", f" {LETTERS[(LETTERS.index(sample.target) + 1) % 4]}"


def _name_subcategory(sample: Sample) -> str:
    return SUBCATEGORY_OF[sample.metadata["subject"]]


_STEM, _HUMANITIES, _SOCIAL, _OTHER = (
    "STEM",
    "humanities",
    "social sciences",
    "other (business, health, misc.)",
)

CATEGORY_OF = {
    "physics": _STEM,
    "chemistry": _STEM,
    "biology": _STEM,
    "computer science": _STEM,
    "math": _STEM,
    "engineering": _STEM,
    "history": _HUMANITIES,
    "philosophy": _HUMANITIES,
    "law": _HUMANITIES,
    "politics": _SOCIAL,
    "culture": _SOCIAL,
    "economics": _SOCIAL,
    "geography": _SOCIAL,
    "psychology": _SOCIAL,
    "other": _OTHER,
    "business": _OTHER,
    "health": _OTHER,
}

SUBCATEGORY_OF = {
    "abstract_algebra": "math",
    "anatomy": "health",
    "astronomy": "physics",
    "business_ethics": "business",
    "clinical_knowledge": "health",
    "college_biology": "biology",
    "college_chemistry": "chemistry",
    "college_computer_science": "computer science",
    "college_mathematics": "math",
    "college_medicine": "health",
    "college_physics": "physics",
    "computer_security": "computer science",
    "conceptual_physics": "physics",
    "econometrics": "economics",
    "electrical_engineering": "engineering",
    "elementary_mathematics": "math",
    "formal_logic": "philosophy",
    "global_facts": "other",
    "high_school_biology": "biology",
    "high_school_chemistry": "chemistry",
    "high_school_computer_science": "computer science",
    "high_school_european_history": "history",
    "high_school_geography": "geography",
    "high_school_government_and_politics": "politics",
    "high_school_macroeconomics": "economics",
    "high_school_mathematics": "math",
    "high_school_microeconomics": "economics",
    "high_school_physics": "physics",
    "high_school_psychology": "psychology",
    "high_school_statistics": "math",
    "high_school_us_history": "history",
    "high_school_world_history": "history",
    "human_aging": "health",
    "human_sexuality": "culture",
    "international_law": "law",
    "jurisprudence": "law",
    "logical_fallacies": "philosophy",
    "machine_learning": "computer science",
    "management": "business",
    "marketing": "business",
    "medical_genetics": "health",
    "miscellaneous": "other",
    "moral_disputes": "philosophy",
    "moral_scenarios": "philosophy",
    "nutrition": "health",
    "philosophy": "philosophy",
    "prehistory": "history",
    "professional_accounting": "other",
    "professional_law": "law",
    "professional_medicine": "health",
    "professional_psychology": "psychology",
    "public_relations": "politics",
    "security_studies": "politics",
    "sociology": "culture",
    "us_foreign_policy": "politics",
    "virology": "health",
    "world_religions": "philosophy",
}

SUBJECTS = tuple(sorted(SUBCATEGORY_OF))
