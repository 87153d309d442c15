"""GPQA: graduate-level multiple choice in the sciences, 0-shot, as TensorRT-LLM's suite asks it.

Paper: Rein et al. 2023, "GPQA: A Graduate-Level Google-Proof Q&A Benchmark". Data: idavidrein/gpqa
(CC-BY-4.0), 198 diamond, 448 main and 546 extended questions. The authors ask that no question
appears in plain text: their archive is read as it is, with the password that they publish, and
decrypted in memory. A sample ends in "A) ...\\nB) ...\\nC) ...\\nD) ..." and asks for reasoning. It
is right if the first "Answer: X" has the right letter. Layout from documentation, not tested on the
real set.
"""

from __future__ import annotations

import csv
import io
import random
import zipfile
from collections.abc import Sequence
from typing import Annotated, Literal

from serve_eval.datasets import local
from serve_eval.datasets.source import GPQA_PASSWORD, KNOWN
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
from serve_eval.scorers.choice import answer_letter
from serve_eval.tasks._samples import RandomSeed, shuffle

SOURCE = KNOWN["gpqa"]
ROWS = {"diamond": 198, "main": 448, "extended": 546}
USUAL_REPEATS = 8
"""Answers to each question in most published tables, of 4 to 16."""
COLUMNS = (
    "Question",
    "Incorrect Answer 1",
    "Incorrect Answer 2",
    "Incorrect Answer 3",
    "Correct Answer",
)
LETTERS = "ABCD"
INSTRUCTION = (
    "Answer the following multiple choice question. The last line of your response should be of the"
    " following format: 'Answer: $LETTER' (without quotes) where LETTER is one of ABCD. Think step"
    " by step before answering."
)

Subset = Literal["diamond", "main", "extended"]


def task(
    *,
    subset: Annotated[Subset, Setting("Questions to ask; references are per subset.")] = "diamond",
    num_samples: Annotated[
        int | None, Setting("Number of questions to ask. Not set: all of the subset.")
    ] = None,
    random_seed: RandomSeed = 0,
    choice_seed: Annotated[int, Setting("Seed of the order of the choices of every question.")] = 0,
    suite_exact: Annotated[
        bool,
        Setting("Order the choices as TensorRT-LLM's suite does on a machine without a cache."),
    ] = False,
) -> Task:
    """Return the task with its options.

    All questions of the subset are asked unless `num_samples` is given; references are per subset.
    `choice_seed` fixes the order of the choices of every row, whatever is asked. In the suite that
    order depends on the machine's cache. `suite_exact` uses the suite's order on a machine without
    a cache, which `random_seed` fixes. Raises PlanError for options out of range, or that exclude
    each other.
    """
    count = ROWS[subset] if num_samples is None else num_samples
    if count < 1:
        raise PlanError("gpqa: num_samples must be 1 or more")
    if suite_exact and choice_seed:
        raise PlanError(
            "gpqa: choice_seed has no effect with suite_exact, where random_seed fixes the"
            " choices too"
        )

    def load(roots: DataRoots, wanted: int) -> Dataset:
        file, rows = _read(roots, subset)
        told = f"GPQA is incomplete: {file.path} has {len(rows)} {subset} questions"
        local.check_rows(roots, len(rows), wanted, told, SOURCE)
        asked = shuffle(len(rows), random_seed)
        orders = (
            suite_orders(asked, random_seed)
            if suite_exact
            else choice_orders(len(rows), choice_seed)
        )
        samples = []
        for i in asked[:wanted]:
            question, *answers = rows[i]
            choices = [answers[k] for k in orders[i]]
            text = f"{INSTRUCTION}\n{question}" + "".join(
                f"\n{letter}) {choice}" for letter, choice in zip(LETTERS, choices, strict=True)
            )
            samples.append(
                Sample(
                    id=f"{subset}-{i}",
                    prompt=text,
                    target=LETTERS[choices.index(answers[3])],
                )
            )
        deviation = (
            None
            if len(rows) == ROWS[subset]
            else f"{len(rows)} questions, where {subset} has {ROWS[subset]}"
        )
        return Dataset(samples=samples, files=(file.source,), total=len(rows), deviation=deviation)

    return Task(
        name="gpqa",
        version=1,
        datasets=("gpqa",),
        reference_file=f"gpqa_{subset}",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=count),
        sampling=SamplingParams(max_tokens=32768, stop=("</s>",)),
        extra={"truncate_prompt_tokens": 4096},
        protocol={
            "subset": subset,
            "random_seed": random_seed,
            "choice_seed": None if suite_exact else choice_seed,
        },
        load=load,
        score=_score,
        answers=_answers,
        scoring="inline",
    )


def choice_orders(count: int, seed: int) -> list[list[int]]:
    """Return which answer is at A, B, C and D, for every row of a subset in file order.

    0 to 2 are the wrong answers, 3 is the right one. One generator serves all rows, so that a row
    has the same order in every run.
    """
    rng = random.Random(seed)
    orders = []
    for _ in range(count):
        order = [0, 1, 2, 3]
        rng.shuffle(order)
        orders.append(order)
    return orders


def suite_orders(asked: Sequence[int], seed: int) -> list[list[int]]:
    """Return the orders of TensorRT-LLM's suite on a machine without a cache.

    `asked` is the order of evaluation. The suite's generator goes through all rows of the file when
    the task is built, without effect, and through the shuffled rows when they are asked.
    lm-evaluation-harness 0.4.8 to 0.4.11 draws nothing in between; the suite pins 0.4.10.
    """
    both = choice_orders(2 * len(asked), seed)
    by_row = dict(zip(asked, both[len(asked) :], strict=True))
    return [by_row[i] for i in range(len(asked))]


def _read(roots: DataRoots, subset: str) -> tuple[local.DataFile, list[list[str]]]:
    """Return the question, three wrong answers and the right one of every row, each stripped."""
    name = f"gpqa_{subset}.csv"
    folder = local.find_folder(SOURCE, roots, ["dataset.zip", f"dataset/{name}", name])
    found = [
        path
        for path in (folder / "dataset.zip", folder / "dataset" / name, folder / name)
        if path.is_file()
    ]
    file = local.read_file(found[0])
    plain = _decrypt(file, name) if found[0].suffix == ".zip" else file
    try:
        table = list(csv.DictReader(io.StringIO(local.text_of(plain), newline=""), strict=True))
    except csv.Error as error:
        raise DatasetError(f"{file.path}: {name}: {error}") from error
    missing = [
        column for column in COLUMNS if any(not isinstance(row.get(column), str) for row in table)
    ]
    if missing or not table:
        raise DatasetError(
            f"{file.path}: {name} has no text in column {', '.join(missing or COLUMNS)}"
        )
    return file, [
        [row[COLUMNS[0]], *((row[column].strip() or " ") for column in COLUMNS[1:])]
        for row in table
    ]


def _decrypt(file: local.DataFile, name: str) -> local.DataFile:
    """Return one file of the authors' archive, in memory. Raises DatasetError for a bad archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(file.content)) as archive:
            members: Sequence[str] = [m for m in archive.namelist() if m.rsplit("/", 1)[-1] == name]
            if not members:
                raise DatasetError(
                    f"{file.path}: the archive has no {name}", hint=local.advice(SOURCE)
                )
            return local.DataFile(file.path, archive.read(members[0], pwd=GPQA_PASSWORD))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError) as error:
        raise DatasetError(
            f"{file.path}: {type(error).__name__}: {error}", hint=local.advice(SOURCE)
        ) from error


def _score(sample: Sample, response: Response) -> Score:
    return answer_letter(response.text, sample.target)


def _answers(sample: Sample) -> tuple[str, str]:
    wrong = LETTERS[(LETTERS.index(sample.target) + 1) % 4]
    return f"It follows.\nAnswer: {sample.target}", f"It follows.\nAnswer: {wrong}"
