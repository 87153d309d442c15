"""MMLU-Pro: 12,032 questions with up to ten options, after 5 reasoned examples of the category.

Paper: Wang et al. 2024, "MMLU-Pro: A More Robust and Challenging Multi-Task Language Understanding
Benchmark". Data: TIGER-Lab/MMLU-Pro (MIT), 12,032 test questions in 14 categories and 70 validation
questions with reasoning, five a category. Prompt and reading are those of the authors'
evaluate_from_local.py, which sends a text that ends in "Answer: Let's think step by step."; by chat
those of evaluate_from_api.py, which sends one message. An answer is right if it says "answer is
(X)" with the right letter, else "Answer: X", else if its last letter of A to J that is a word of
its own is right. Test questions were tried in the authors' form, validation questions were not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from serve_eval.datasets import local
from serve_eval.datasets.source import HubSource, Source
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Prompt,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers._expected import grade_value
from serve_eval.tasks._samples import (
    NumFewshot,
    NumSamples,
    RandomSeed,
    break_down_by,
    read_entry,
    shuffle,
)

SOURCE = Source(
    name="MMLU-Pro",
    folders=("TIGER-Lab/MMLU-Pro", "mmlu_pro"),
    homepage="https://huggingface.co/datasets/TIGER-Lab/MMLU-Pro",
    licence="MIT",
    rows="12032 test, 70 validation, 14 categories",
    hub=HubSource(
        repository="TIGER-Lab/MMLU-Pro",
        patterns=("data/test-*.parquet", "data/validation-*.parquet"),
    ),
)
PROMPT_FROM = "MMLU-Pro (https://github.com/TIGER-AI-Lab/MMLU-Pro, Apache-2.0)"
ROWS = 12032
SHOTS = 5
"""Validation questions of each category."""
PLACES = ("", "data/")
COLUMNS = ("question", "answer", "category")
LETTERS = "ABCDEFGHIJ"
ABOUT = "The following are multiple choice questions (with answers) about {category}. Think step"
TEXT_HEAD = (
    f'{ABOUT} by step and then finish your answer with "the answer is (X)" where X is the correct'
    " letter choice.\n\n\n\n"
)
CHAT_HEAD = (
    f'{ABOUT} by step and then output the answer in the format of "The answer is (X)" at the'
    " end.\n\n"
)
THOUGHT = "Let's think step by step."

_SAID = re.compile(r"answer is \(?([A-J])")
_HEADED = re.compile(r"(?=[aA]nswer:\s*+([A-J]))")
_ALONE = re.compile(r"\b[A-J]\b")


def task(
    *,
    num_fewshot: NumFewshot = SHOTS,
    num_samples: NumSamples = ROWS,
    random_seed: RandomSeed = 0,
    apply_chat_template: Annotated[
        bool, Setting("Ask by chat, with the words of the authors' script for APIs.")
    ] = False,
) -> Task:
    """Return the task with its options.

    Questions are asked in an order that `random_seed` fixes, so that the first `num_samples` are of
    all categories. By chat, the prompt is one message in the words of the authors' script for APIs,
    an answer has up to 4000 tokens instead of 2048, no stop string is sent, and `**` is removed
    from answers. Raises PlanError for options out of range.
    """
    if not 0 <= num_fewshot <= SHOTS or num_samples < 1:
        raise PlanError(
            f"mmlu_pro: num_fewshot must be 0 to {SHOTS}, num_samples must be 1 or more"
        )

    def load(roots: DataRoots, wanted: int) -> Dataset:
        splits = ("test", "validation") if num_fewshot else ("test",)
        folder = local.find_folder(SOURCE, roots, local.split_markers(splits, PLACES))
        files = [local.find_split(SOURCE, folder, split, PLACES) for split in splits]
        test, *shots = (_read(file) for file in files)
        told = f"MMLU-Pro is incomplete: {files[0].path} has {len(test)} questions"
        local.check_rows(roots, len(test), wanted, told, SOURCE)
        heads = _heads(
            {row.category for row in test},
            shots[0] if shots else (),
            num_fewshot,
            files[-1],
            chat=apply_chat_template,
        )
        make = partial(_sample, heads=heads, chat=apply_chat_template)
        return Dataset(
            samples=[make(test[i]) for i in shuffle(len(test), random_seed)[:wanted]],
            files=tuple(file.source for file in files),
            total=len(test),
            deviation=(
                None if len(test) == ROWS else f"{len(test)} questions, where MMLU-Pro has {ROWS}"
            ),
        )

    return Task(
        name="mmlu_pro",
        version=1,
        datasets=("mmlu_pro",),
        reference_file="mmlu_pro",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=(
            SamplingParams(max_tokens=4000)
            if apply_chat_template
            else SamplingParams(max_tokens=2048, stop=("Question:",))
        ),
        chat=apply_chat_template,
        protocol={"num_fewshot": num_fewshot, "random_seed": random_seed},
        load=load,
        score=partial(_score, chat=apply_chat_template),
        answers=_answers,
        breakdown=break_down_by({"category": read_entry("subject")}),
        scoring="inline",
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """A question, its options, the letter of the right one, its category and its reasoning."""

    id: str
    question: str
    options: tuple[str, ...]
    answer: str
    category: str
    reasoning: str


def _read(file: local.DataFile) -> list[_Row]:
    return [
        _row(row, f"{file.path}: row {number}")
        for number, row in enumerate(local.rows(file, COLUMNS), 1)
    ]


def _row(row: Mapping[str, Any], where: str) -> _Row:
    """Return a row without the options "N/A", which fill up lists of options."""
    given = row.get("options")
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise DatasetError(f"{where}: options must be a list of texts")
    options = tuple(one for one in given if one != "N/A")
    if not 1 < len(options) <= len(LETTERS) or row["answer"] not in (*LETTERS[: len(options)],):
        raise DatasetError(
            f"{where}: the answer {row['answer']!r} is not one of the {len(options)} options, of"
            f" which there may be 2 to {len(LETTERS)}"
        )
    return _Row(
        id=str(row.get("question_id")),
        question=row["question"],
        options=options,
        answer=row["answer"],
        category=row["category"],
        reasoning=str(row.get("cot_content") or ""),
    )


def _heads(
    categories: Iterable[str],
    shots: Sequence[_Row],
    count: int,
    file: local.DataFile,
    *,
    chat: bool,
) -> dict[str, str]:
    """Return what the prompts of each category share: the instruction and `count` examples.

    Raises DatasetError for a category with fewer examples, or an example without reasoning.
    """
    heads = {}
    for category in sorted(categories):
        found = [shot for shot in shots if shot.category == category][:count]
        if len(found) < count or not all(shot.reasoning for shot in found):
            raise DatasetError(
                f"MMLU-Pro is incomplete: {file.path} has fewer than {count} questions of"
                f" {category} with a text in column cot_content, the reasoning of an example",
                hint=local.advice(SOURCE),
            )
        head = (CHAT_HEAD if chat else TEXT_HEAD).format(category=category)
        heads[category] = head + "".join(
            f"{_example(shot, shot.reasoning, chat=chat)}\n\n" for shot in found
        )
    return heads


def _example(row: _Row, reasoning: str, *, chat: bool) -> str:
    """Return a question with its options and the reasoning, in the form of one of the scripts."""
    options = "".join(
        f"{letter}. {text}\n" for letter, text in zip(LETTERS, row.options, strict=False)
    )
    if chat:
        return (
            f"Question: {row.question}\nOptions: {options}Answer: {reasoning.removeprefix('A: ')}"
        )
    answer = reasoning.replace(f"A: {THOUGHT}", f"Answer: {THOUGHT}")
    return f"Question:\n{row.question}\nOptions:\n{options}{answer}"


def _sample(row: _Row, *, heads: Mapping[str, str], chat: bool) -> Sample:
    text = heads[row.category] + _example(row, f"A: {THOUGHT}", chat=chat)
    prompt: Prompt = (Message(role="user", content=f"{text}\n\n"),) if chat else text
    return Sample(
        id=f"test-{row.id}",
        prompt=prompt,
        target=row.answer,
        metadata={"subject": row.category, "options": str(len(row.options))},
    )


def find_letter(text: str) -> str | None:
    """Return the letter that an answer gives by the authors' three rules, or None.

    The first rule that finds a letter counts: the first "answer is (X)"; the last "Answer: X" of
    the first line that has one; the last letter of A to J that is a word of its own, also the
    article A and the pronoun I. The authors' patterns take time that grows with the square of a
    line's length; this takes time in proportion to the text.
    """
    if said := _SAID.search(text):
        return said[1]
    if headed := _HEADED.search(text):
        ends = text.find("\n", headed.start())
        line = (headed.start(), ends if ends >= 0 else len(text))
        # The letter may stand on the line after "Answer:", so the search goes past that line.
        *_, last = (f for f in _HEADED.finditer(text, line[0]) if f.start() < line[1])
        return last[1]
    alone = _ALONE.findall(text)
    return alone[-1] if alone else None


def _score(sample: Sample, response: Response, *, chat: bool) -> Score:
    letter = find_letter(response.text.replace("**", "") if chat else response.text)
    return grade_value(float(letter == sample.target), letter)


def _answers(sample: Sample) -> tuple[str, str]:
    other = LETTERS[(LETTERS.index(sample.target) + 1) % int(sample.metadata["options"])]
    return f" So the answer is ({sample.target}).", f" So the answer is ({other})."
